"""Limits of queues (MSG): what would not fit is refused, or the oldest messages make room for it.

``limits`` counts what waits, ``discarder`` makes room. ``rules.limits`` says what the settings ask for.
"""

from celery_poison.extensions.limits.limiting import LimitsExtension

EXTENSION = LimitsExtension
