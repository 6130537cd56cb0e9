"""celery #3541: task_reject_on_worker_lost settings does not work [Celery 4.0]

Redis. The whole worker is killed while its task runs; another one starts.
"""

import time

from examples.issues.stage import LATE, mark

STATE = "solved"
PLAIN = "0 of 1 done, 1 left in unacked"
GUARDED = "1 of 1 done, 0 left in unacked"


def tasks(task):
    @task(**LATE)
    def report():
        mark("start")
        time.sleep(3)
        mark("end")


def play(stage):
    stage.send("report")
    with stage.worker() as worker:
        stage.wait(lambda: stage.count("start"))
        worker.kill_group()
    with stage.worker():
        stage.wait(lambda: stage.count("end") and not stage.unacked(), watch=15)
        return f"{stage.count('end')} of 1 done, {stage.unacked()} left in unacked"
