"""celery #10462: When using acks_late, a MemoryError will block the worker pool completely

Redis. A task with `acks_late` raises `MemoryError`. Its worker is started again whenever it ends.
"""

from celery_poison.testing import deaths
from examples.issues.stage import LATE, mark

STATE = "solved"
PLAIN = "more than 2 workers ended, and on"
GUARDED = "0 workers ended, run 2 times, then in quarantine"


def tasks(task):
    @task(**LATE)
    def load():
        mark("start")
        deaths.memory_error()


def play(stage):
    stage.send("load")
    with stage.supervised() as fleet:
        stage.wait(lambda: len(fleet.deaths) > 2 or stage.kept())
        if not stage.kept():
            return "more than 2 workers ended, and on"
        return f"{len(fleet.deaths)} workers ended, run {stage.count('start')} times, then in quarantine"
