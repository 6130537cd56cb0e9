"""The same load without the plugin, for as long as anybody cares to watch it."""

from __future__ import annotations

from contextlib import suppress

from celery_poison.demo.interrupt import Interrupted, Interruptions
from celery_poison.demo.load import Load
from celery_poison.demo.screen import Screen
from celery_poison.demo.stage import Stage
from celery_poison.demo.watch import Snapshot, Watch

TICK = 0.15


def play(stage: Stage, load: Load, screen: Screen, interruptions: Interruptions, seconds: float) -> Snapshot:
    """Watch for ``seconds``, or until somebody has seen enough; return how things stand then."""
    watch = Watch(stage, load, None)
    with suppress(Interrupted):
        while watch.seconds < seconds:
            screen.show(watch.look())
            interruptions.pause(TICK)
    last = watch.look()
    screen.settle(last)
    # Waiting for these workers to finish their tasks would only let them be killed again.
    stage.grace = 0.0
    return last
