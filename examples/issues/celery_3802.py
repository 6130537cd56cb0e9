"""celery #3802: Successful tasks are not acked if acks_late=True on warm shutdown

Redis, prefork. A warm shutdown while a task with `acks_late` runs; another worker starts.
"""

import time

from examples.issues.stage import LATE, mark, times

STATE = "fixed"
PLAIN = "started once"
GUARDED = "started once"


def tasks(task):
    @task(**LATE)
    def foo():
        mark("start")
        time.sleep(3)
        mark("end")


def play(stage):
    stage.send("foo")
    with stage.worker() as worker:
        stage.wait(lambda: stage.count("start"))
        worker.terminate()
        worker.wait()
    with stage.worker():
        stage.watch(5)
        return f"started {times(stage.count('start'))}"
