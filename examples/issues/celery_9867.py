"""celery #9867: RabbitMQ detects cycle and drops message when using quorum queues with
delayed tasks + retry

RabbitMQ 3.10, quorum queue. A task with a `countdown` of 2 s retries twice after 2 s.
"""

from kombu import Exchange, Queue

from examples.issues.stage import mark

BROKER = "rabbitmq"
QUORUM = Queue("celery", Exchange("celery", "topic"), "celery", queue_arguments={"x-queue-type": "quorum"})
SETTINGS = {"task_queues": [QUORUM], "task_default_exchange_type": "topic"}
STATE = "fixed"
PLAIN = "1 of 1 done"
GUARDED = "1 of 1 done"


def tasks(task):
    @task(bind=True)
    def poll(self):
        if self.request.retries < 2:
            raise self.retry(countdown=2)
        mark("end")


def play(stage):
    with stage.worker():
        stage.send("poll", countdown=2)
        stage.wait(lambda: stage.count("end"), watch=60)
        return f"{stage.count('end')} of 1 done"
