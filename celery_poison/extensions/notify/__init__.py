"""Notifications (``poison_notify``): new groups in quarantine and a closed fleet gate reach people unasked.

``notifier`` says what is due, ``receivers`` hands it over, ``notes`` remembers it in the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from celery_poison.basics.parts import Round
from celery_poison.extension import Extension
from celery_poison.extensions.notify.settings import NotifySettings
from celery_poison.ledger import Ledger

#: Seconds between two looks.
PAUSE = 1.0


class Notify(Extension):
    """Has the active monitor look for what is due."""

    def rounds(self, ledger: Ledger, announce: Callable[..., object]) -> Iterable[Round]:
        settings = self.host.settings
        if settings.of(NotifySettings).notify:
            from celery_poison.extensions.notify.notifier import Notifier  # not where an app only publishes

            notifier = Notifier(self.host.app, ledger, settings, announce)
            yield Round("poison-notifier", PAUSE, notifier.round)


#: Keys of its own in the ledger -> what names one of several, as docs/keys.md has it.
KEYS = {"notified": ""}
EXTENSION = Notify
