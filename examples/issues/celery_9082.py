"""celery #9082: Avoid infinite retries for reject_on_worker_lost

Redis. A task kills its pool process whenever it runs; `acks_late`, `reject_on_worker_lost`.
"""

from celery_poison.testing import deaths
from examples.issues.stage import LATE, mark

STATE = "solved"
PLAIN = "run more than 5 times, and on"
GUARDED = "run 2 times, then in quarantine"


def tasks(task):
    @task(**LATE)
    def crash():
        mark("start")
        deaths.sigkill()


def play(stage):
    stage.send("crash")
    with stage.worker():
        stage.wait(lambda: stage.count("start") > 5 or stage.kept())
        runs = stage.count("start")
    end = "then in quarantine" if stage.kept() else "and on"
    return f"run {'more than 5' if runs > 5 else runs} times, {end}"
