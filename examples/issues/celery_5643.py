"""celery #5643: Should overriding `__call__()` in custom Task class call self.run() or super().`__call__()`

Redis. One task class with a `__call__` of its own ends it in `self.run()`, another one in
`super().__call__()`.
"""

from celery import Task

from examples.issues.stage import mark, times

STATE = "fixed"
PLAIN = "`self.run()`: run once, knows its id; `super().__call__()`: run once, knows its id"
GUARDED = "`self.run()`: run once, knows its id; `super().__call__()`: run once, knows its id"


class Run(Task):
    def __call__(self, *args):
        return self.run(*args)


class Super(Task):
    def __call__(self, *args):
        return super().__call__(*args)


def tasks(task):
    def knows(self):
        mark(self.name)
        return self.request.id

    for base in (Run, Super):
        task(name=base.__name__, base=base, bind=True, acks_late=True)(knows)


def play(stage):
    with stage.worker():
        results = [(name, stage.send(name)) for name in ("Run", "Super")]
        knows = {name: result.get(timeout=60) == result.id for name, result in results}
    ways = {"Run": "`self.run()`", "Super": "`super().__call__()`"}
    told = {True: "knows its id", False: "does not know its id"}
    return "; ".join(f"{ways[name]}: run {times(stage.count(name))}, {told[knows[name]]}" for name in ways)
