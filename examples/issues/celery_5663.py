"""celery #5663: Completed tasks restore on shutdown causing duplicates for recursive tasks

RabbitMQ, gevent. A warm shutdown while a task with `acks_late` runs; another worker starts.
"""

import time

from examples.issues.stage import LATE, mark, times

BROKER = "rabbitmq"
STATE = "fixed"
PLAIN = "started once"
GUARDED = "started once"


def tasks(task):
    @task(**LATE)
    def crawl():
        mark("start")
        time.sleep(3)
        mark("end")


def play(stage):
    stage.send("crawl")
    with stage.worker(pool="gevent") as worker:
        stage.wait(lambda: stage.count("start"))
        worker.terminate()
        worker.wait()
    with stage.worker(pool="gevent"):
        stage.watch(5)
        return f"started {times(stage.count('start'))}"
