"""celery #7185: worker_cancel_long_running_tasks_on_connection_loss setting kills main processs

RabbitMQ. Its connection and the results' Redis are lost while a task runs; both come back.
"""

import time

from examples.issues.stage import LATE, mark, marked

BROKER = "rabbitmq"
SETTINGS = {"worker_cancel_long_running_tasks_on_connection_loss": True}
STATE = "open"
PLAIN = "the worker lives"
GUARDED = "the worker lives"


def tasks(task):
    @task(**LATE)
    def scan():
        mark("start")
        while not marked("finish"):
            time.sleep(0.1)


def play(stage):
    stage.send("scan")
    with stage.worker() as worker:
        stage.wait(lambda: stage.count("start"))
        stage.redis.kill()
        stage.cut()
        stage.wait(lambda: "Terminating it instead" in worker.log_text() or not worker.is_alive())
        stage.redis.start()
        stage.leave("finish")
        stage.wait(lambda: worker.log_text().count("Connected to") == 2 or not worker.is_alive())
        return f"the worker {'lives' if worker.is_alive() else 'is dead'}"
