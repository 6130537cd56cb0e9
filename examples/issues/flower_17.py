"""flower #17: Feature request, retry failed task

A task raises, another one kills its pool process. The task is repaired; they shall run again from Flower.
With the plugin: `poison_keep_failures`.
"""

from celery_poison.testing import deaths
from examples.issues.stage import mark, marked

SETTINGS = {"poison_keep_failures": True}
STATE = "solved"
PLAIN = "Flower answers 404; done: 0 that had killed its process, 0 that had raised"
GUARDED = "Flower answers 200; done: 1 that had killed its process, 1 that had raised"


def tasks(task):
    @task(acks_late=True)
    def convert(how):
        if not marked("repaired"):
            deaths.sigkill() if how == "kills" else int("no number")
        mark(how)


def play(stage):
    killer, raiser = stage.send("convert", "kills"), stage.send("convert", "raises")
    with stage.worker():
        stage.wait(lambda: stage.kept() == 2 or (raiser.ready() and killer.ready()))
        stage.leave("repaired")
        status = stage.flower("/api/poison/act/release", {"all": True, "note": "repaired"})
        stage.wait(lambda: stage.count("kills") and stage.count("raises"), watch=5)
        kills, raises = stage.count("kills"), stage.count("raises")
    return f"Flower answers {status}; done: {kills} that had killed its process, {raises} that had raised"
