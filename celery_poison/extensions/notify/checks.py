"""What ``doctor`` checks: each receiver, if it is asked to send them a test."""

from __future__ import annotations

from collections.abc import Iterator

from celery_poison.basics.parts import Finding
from celery_poison.extensions.notify.notifier import Wording
from celery_poison.extensions.notify.receivers import NotDelivered, Receiver
from celery_poison.plugin import Plugin
from celery_poison.rules.values import receivers_of


def examine(plugin: Plugin) -> Iterator[Finding]:
    return iter(())


def _send_tests(plugin: Plugin) -> Iterator[Finding]:
    """Send a test to each receiver that is not this very process."""
    settings = plugin.settings
    test = Wording(plugin.app.main or "celery", settings.namespace).test()
    for receiver in (Receiver(each) for each in receivers_of(settings.notify) if each != "event"):
        try:
            receiver.tell(test.as_dict())
        except NotDelivered as error:
            cure = "correct it, or poison_notify; see docs/howto/notify.md"
            yield Finding("notify", f"{receiver.name}: {error}", cure, broken=True)
        else:
            yield Finding("notify", f"{receiver.name} took a test")


TRIES = {"notify": ("Send a test to everything that poison_notify names.", _send_tests)}
