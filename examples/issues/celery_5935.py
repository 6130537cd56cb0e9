"""celery #5935: Long running jobs redelivering after broker visibility timeout with celery and redis

Redis. A task of 6 s with a visibility timeout of 1 s; the worker lives.
"""

import time

from examples.issues.stage import EAGER, LATE, mark

SETTINGS = {"broker_transport_options": EAGER}
STATE = "solved"
PLAIN = "started more than once"
GUARDED = "started once"


def tasks(task):
    @task(**LATE)
    def train():
        mark("start")
        time.sleep(6)
        mark("end")


def play(stage):
    stage.send("train")
    with stage.worker(concurrency=2):
        stage.wait(lambda: stage.count("end"))
        return f"started {'once' if stage.count('start') == 1 else 'more than once'}"
