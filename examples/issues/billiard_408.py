"""billiard #408: WorkerLostError Handling

Redis. A task's process is killed whenever it runs (`acks_late`). Its caller waits, and its class has
an `on_failure`. With the plugin a person gives it up: `poison fail`.
"""

from celery import Task

from celery_poison import Quarantine
from celery_poison.testing import deaths
from examples.issues.stage import mark, times

STATE = "solved"
PLAIN = "its caller hears WorkerLostError, `on_failure` is not called"
GUARDED = "its caller hears GivenUp, `on_failure` is called once"


class Order(Task):
    def on_failure(self, *_):
        mark("on_failure")


def tasks(task):
    @task(base=Order, acks_late=True)
    def charge():
        deaths.sigkill()


def play(stage):
    result = stage.send("charge")
    with stage.worker():
        stage.wait(lambda: result.ready() or stage.kept())
        if stage.guarded:
            quarantine = Quarantine(stage.app)
            quarantine.fail([record.mid for record in quarantine.list()], note="hopeless")
        stage.wait(lambda: result.ready() and stage.count("on_failure"), watch=5)
    called = f"called {times(stage.count('on_failure'))}" if stage.count("on_failure") else "not called"
    return f"its caller hears {type(result.result).__name__}, `on_failure` is {called}"
