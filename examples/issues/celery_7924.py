"""celery #7924: About task_acks_late

Redis. Six tasks, two slots, prefetch 4: the whole worker is killed; another one starts.
"""

import time

from examples.issues.stage import LATE, mark

SETTINGS = {"worker_prefetch_multiplier": 2}
STATE = "solved"
PLAIN = "2 of 6 done, 4 left in unacked"
GUARDED = "6 of 6 done, 0 left in unacked"


def tasks(task):
    @task(**LATE)
    def add():
        mark("start")
        time.sleep(3)
        mark("end")


def play(stage):
    for _ in range(6):
        stage.send("add")
    with stage.worker(concurrency=2) as worker:
        stage.wait(lambda: stage.count("start") == 2 and stage.unacked() == 4)
        worker.kill_group()
    with stage.worker(concurrency=2):
        stage.wait(lambda: stage.count("end") == 6 and not stage.unacked(), watch=20)
        return f"{stage.count('end')} of 6 done, {stage.unacked()} left in unacked"
