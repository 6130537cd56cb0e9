"""celery #6760: Retry causes unrecoverable error

RabbitMQ with a `consumer_timeout` of 3 s. A task is to run in 20 s (`countdown`).
"""

from examples.issues.stage import mark

BROKER = "rabbitmq"
LIMIT = "application:set_env(rabbit, consumer_timeout, 3000)"
LOOK = "application:set_env(rabbit, channel_tick_interval, 1000)"
STATE = "open"
PLAIN = "the worker is dead, 0 of 1 done"
GUARDED = "the worker is dead, 0 of 1 done"


def tasks(task):
    @task()
    def later():
        mark("start")


def play(stage):
    stage.rabbit.ctl("eval", f"{LIMIT}, {LOOK}.")
    stage.send("later", countdown=20)
    with stage.worker() as worker:
        stage.wait(lambda: stage.count("start") or not worker.is_alive(), watch=60)
        return f"the worker {'lives' if worker.is_alive() else 'is dead'}, {stage.count('start')} of 1 done"
