"""celery #4070: tasks being created with same task_id in queue

Redis. Two tasks are sent with one id and a `countdown`. The worker that waits with them is killed; another
one starts.
"""

from examples.issues.stage import mark

STATE = "open"
PLAIN = "2 of 2 are accepted, 0 of 2 done"
GUARDED = "2 of 2 are accepted, 2 of 2 done"


def tasks(task):
    @task(acks_late=True)
    def register(user):
        mark(user)


def play(stage):
    with stage.worker() as worker:
        sent = [stage.send("register", user, task_id="one", countdown=5) for user in ("ann", "bob")]
        stage.wait(lambda: worker.log_text().count("[one] received") == 2)
        worker.kill_group()
    with stage.worker():
        stage.wait(lambda: stage.count("ann") and stage.count("bob"), watch=20)
        done = stage.count("ann") + stage.count("bob")
    return f"{len(sent)} of 2 are accepted, {done} of 2 done"
