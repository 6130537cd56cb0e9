"""celery #4875: Custom headers not propagated as documented ?

Redis. A task with a header of its own retries once, then hands its headers on to two other tasks.
"""

from examples.issues.stage import mark

STATE = "fixed"
PLAIN = "the header is there in 2 of 2 runs, and in 2 of 2 tasks that it is handed on to"
GUARDED = "the header is there in 2 of 2 runs, and in 2 of 2 tasks that it is handed on to"


def tasks(task):
    @task(bind=True, acks_late=True)
    def parent(self):
        mark(f"parent {self.request.headers['tenant']}")
        if not self.request.retries:
            self.retry(countdown=0)
        for _ in range(2):
            self.app.send_task("child", headers=self.request.headers)

    @task(bind=True, acks_late=True)
    def child(self):
        mark(f"child {self.request.headers['tenant']}")


def play(stage):
    stage.send("parent", headers={"tenant": "ann"})
    with stage.worker():
        stage.wait(lambda: stage.count("child ann") == 2)
    runs, others = stage.count("parent ann"), stage.count("child ann")
    return f"the header is there in {runs} of 2 runs, and in {others} of 2 tasks that it is handed on to"
