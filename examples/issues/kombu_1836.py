"""kombu #1836: Redis - Losing Unacked Messages - WorkerLostError('Worker exited
prematurely: signal 15 (SIGTERM)

Redis. `SIGTERM` for every process of the worker while its tasks run; another one starts.
"""

import os
import signal
import time

from examples.issues.stage import LATE, mark

STATE = "solved"
PLAIN = "`acks_late`: 0 of 1 done; `reject_on_worker_lost`, too: 1 of 1 done"
GUARDED = "`acks_late`: 1 of 1 done; `reject_on_worker_lost`, too: 1 of 1 done"


def tasks(task):
    def ship(how):
        mark("start")
        time.sleep(3)
        mark(how)

    task(name="late", acks_late=True)(ship)
    task(name="rejecting", **LATE)(ship)


def play(stage):
    stage.send("late", "late"), stage.send("rejecting", "rejecting")
    with stage.worker(concurrency=2) as worker:
        stage.wait(lambda: stage.count("start") == 2)
        os.killpg(worker.main_pid, signal.SIGTERM)  # as a service manager does
        worker.wait()
    with stage.worker():
        stage.wait(lambda: stage.count("late") and stage.count("rejecting"), watch=20)
        late, rejecting = stage.count("late"), stage.count("rejecting")
    return f"`acks_late`: {late} of 1 done; `reject_on_worker_lost`, too: {rejecting} of 1 done"
