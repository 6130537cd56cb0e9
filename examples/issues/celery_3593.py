"""celery #3593: Can Celery 4.0.0 workers handle _both_ protocol versions simultaneously?

Redis. One message of each protocol waits for its `countdown`, all in one worker.
"""

from examples.issues.stage import make_app, mark

STATE = "fixed"
PLAIN = "protocol 1: 1 of 1 done; protocol 2: 1 of 1 done"
GUARDED = "protocol 1: 1 of 1 done; protocol 2: 1 of 1 done"


def tasks(task):
    @task(acks_late=True)
    def work(protocol):
        mark(f"protocol {protocol}")


def play(stage):
    for protocol in (1, 2):
        with make_app(stage.environ) as producer:
            producer.conf.task_protocol = protocol
            producer.tasks["work"].apply_async((protocol,), countdown=1)
    names = "protocol 1", "protocol 2"
    with stage.worker():
        stage.wait(lambda: all(map(stage.count, names)))
    return "; ".join(f"{name}: {stage.count(name)} of 1 done" for name in names)
