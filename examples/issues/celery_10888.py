"""celery #10888: (thread not read; Celery 5.7.0 names it in `celery/worker/loops.py`)

Redis. The connection is cut while a task with a time limit of 8 s runs for ever.
"""

import time

from examples.issues.stage import mark

STATE = "fixed"
PLAIN = "FAILURE: TimeLimitExceeded"
GUARDED = "FAILURE: TimeLimitExceeded"


def tasks(task):
    @task(time_limit=8)
    def endless():
        mark("start")
        time.sleep(600)


def play(stage):
    result = stage.send("endless")
    with stage.worker():
        stage.wait(lambda: stage.count("start"))
        stage.cut()
        stage.wait(lambda: result.ready(), watch=60)
        return f"{result.state}: {type(result.result).__name__}"
