"""celery #9054: Celery worker stops consuming after Redis restart

Redis restarts beside an idle worker; then a task is sent.
"""

from examples.issues.stage import mark

STATE = "fixed"
PLAIN = "2 of 2 done"
GUARDED = "2 of 2 done"


def tasks(task):
    @task()
    def add():
        mark("end")


def play(stage):
    stage.send("add")
    with stage.worker():
        stage.wait(lambda: stage.count("end") == 1)
        stage.redis.restart()
        stage.send("add")
        stage.wait(lambda: stage.count("end") == 2, watch=60)
        return f"{stage.count('end')} of 2 done"
