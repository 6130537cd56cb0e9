"""A failing test of a message in quarantine (NEW-21): ``celery poison repro``, and a download in Flower.

``writing`` makes the file, ``shrinking`` searches smaller arguments of which the task dies too. No hook: what
a person asks for needs no part of the core.
"""

from __future__ import annotations

from celery_poison.extension import Extension


class ReproFiles(Extension):
    """Fills no hook; the verb is there as long as this room is in ``ORDER``."""


EXTENSION = ReproFiles
