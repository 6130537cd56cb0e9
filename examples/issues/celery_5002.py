"""celery #5002: Custom task classes not working

Redis. The task's class has a `Request` as in Celery's manual. One task raises, one exceeds its time limit.
"""

import time

from celery import Task
from celery.worker.request import Request

from examples.issues.stage import mark, times

STATE = "fixed"
PLAIN = "`on_failure` called twice, `on_timeout` called once"
GUARDED = "`on_failure` called twice, `on_timeout` called once"


class Own(Request):
    def on_timeout(self, soft, timeout):
        super().on_timeout(soft, timeout)
        mark("on_timeout")

    def on_failure(self, *args, **options):
        super().on_failure(*args, **options)
        mark("on_failure")


class Base(Task):
    Request = Own


def tasks(task):
    task(base=Base, acks_late=True)(raises)
    task(base=Base, acks_late=True, time_limit=2)(hangs)


def raises():
    raise ValueError


def hangs():
    time.sleep(600)


def play(stage):
    ends = [stage.send("raises"), stage.send("hangs")]
    with stage.worker(concurrency=2):
        stage.wait(lambda: all(end.ready() for end in ends) and stage.count("on_timeout"), watch=30)
    hooks = ("on_failure", "on_timeout")
    return ", ".join(f"`{hook}` called {times(stage.count(hook))}" for hook in hooks)
