"""celery #7857: Fix non working example of using celery_worker pytest fixture

Redis. A test makes a task of its own: `NotRegistered` before `celery_worker.reload()`, and it runs
afterwards.
"""

import pytest
from celery.exceptions import NotRegistered

STATE = "fixed"
PLAIN = "1 passed"
GUARDED = "1 passed"


def tasks(task):
    pass


def test_a_task_of_its_own(celery_app, celery_worker):
    @celery_app.task
    def multiply(x, y):
        return x * y

    with pytest.raises(NotRegistered):
        multiply.delay(3, 4).get(timeout=30)
    celery_worker.reload()
    assert multiply.delay(3, 4).get(timeout=30) == 12


def play(stage):
    return stage.pytest()
