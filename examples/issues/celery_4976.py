"""celery #4976: Worker restarted and visibility timeout not exceeded - task will not be re-executed

Redis, gevent. The worker is killed while its task runs; another one starts before the visibility timeout.
"""

import time

from examples.issues.stage import EAGER, LATE, mark

SETTINGS = {"broker_transport_options": EAGER | {"visibility_timeout": 60}}
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
    with stage.worker(pool="gevent") as worker:
        stage.wait(lambda: stage.count("start"))
        worker.kill_group()
    with stage.worker(pool="gevent"):
        stage.wait(lambda: stage.count("end") and not stage.unacked(), watch=30)
        return f"{stage.count('end')} of 1 done, {stage.unacked()} left in unacked"
