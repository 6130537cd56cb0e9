"""celery #5105: celery_worker fixture hangs in second test

RabbitMQ. Two tests, each with a `celery_worker` of its own, run a task.
"""

BROKER = "rabbitmq"
STATE = "fixed"
PLAIN = "2 passed"
GUARDED = "2 passed"


def tasks(task):
    @task()
    def add(x, y):
        return x + y


def test_the_first(celery_app, celery_worker):
    assert celery_app.tasks["add"].delay(1, 2).get(timeout=30) == 3


def test_the_second(celery_app, celery_worker):
    assert celery_app.tasks["add"].delay(3, 4).get(timeout=30) == 7


def play(stage):
    return stage.pytest()
