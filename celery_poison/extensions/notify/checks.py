"""What ``doctor`` checks: each receiver, if it is asked to send them a test."""

from __future__ import annotations

from collections.abc import Iterator

from celery_poison.basics.parts import Finding
from celery_poison.extensions.notify.notifier import Wording, send_to_all
from celery_poison.plugin import Plugin

_CURE = "correct it, or poison_notify; see docs/howto/notify.md"


def examine(plugin: Plugin) -> Iterator[Finding]:
    return iter(())


def _send_tests(plugin: Plugin) -> Iterator[Finding]:
    for name, error in send_to_all(plugin, Wording.test):
        if error:
            yield Finding("notify", f"{name}: {error}", _CURE, broken=True)
        else:
            yield Finding("notify", f"{name} took a test")


TRIES = {"notify": ("Send a test to everything that poison_notify names.", _send_tests)}
