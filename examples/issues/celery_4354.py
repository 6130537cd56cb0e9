"""celery #4354: Celery not return tasks in pool on shutdown

Redis. A message is on its way to a worker that is asked to leave, or is killed; another one starts.
"""

import signal

from examples.issues.stage import mark

STATE = "solved"
PLAIN = "asked to leave: 1 of 1 done; killed: 0 of 1 done"
GUARDED = "asked to leave: 1 of 1 done; killed: 1 of 1 done"


def tasks(task):
    @task()
    def pay(how):
        mark(how)


def play(stage):
    for how in (signal.SIGTERM, signal.SIGKILL):
        with stage.worker() as worker:
            stage.wait(stage.listeners)
            worker.send_signal(signal.SIGSTOP)  # Redis hands the message over, and nobody reads it
            stage.send("pay", how.name)
            worker.send_signal(how)
            worker.send_signal(signal.SIGCONT)
            worker.wait()
        with stage.worker():
            stage.wait(lambda how=how: stage.count(how.name), watch=10)
    return f"asked to leave: {stage.count('SIGTERM')} of 1 done; killed: {stage.count('SIGKILL')} of 1 done"
