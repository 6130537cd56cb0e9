"""A failing test of a message in quarantine (NEW-21): ``celery poison repro``, and a download in Flower.

``writing`` makes the file, ``shrinking`` searches for smaller arguments that kill the task too. It fills
no hook: a person asks for it.
"""

from __future__ import annotations

from celery_poison.extension import Extension


class ReproFiles(Extension):
    """Fills no hook; the verb is there as long as this room is in ``ORDER``."""


EXTENSION = ReproFiles
