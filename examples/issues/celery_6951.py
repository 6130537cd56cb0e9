"""celery #6951: Tasks restart when one of rabbitmq (broker) nodes goes down or loss connection
(even for a few sec)

RabbitMQ. The connection is cut while a task runs; the worker lives.
"""

import time

from examples.issues.stage import LATE, mark, marked, times

BROKER = "rabbitmq"
STATE = "solved"
PLAIN = "started twice"
GUARDED = "started once"


def tasks(task):
    @task(**LATE)
    def scrape():
        mark("start")
        while not marked("finish"):
            time.sleep(0.1)
        mark("end")


def play(stage):
    stage.send("scrape")
    with stage.worker(concurrency=2) as worker:
        stage.wait(lambda: stage.count("start"))
        stage.cut()
        stage.wait(lambda: worker.log_text().count("Connected to") == 2)
        stage.watch(6)
        stage.leave("finish")
        stage.wait(lambda: stage.count("end"))
        return f"started {times(stage.count('start'))}"
