"""Where a person decides about the proposal of the pipeline (NEW-7)."""

from __future__ import annotations

from typing import NamedTuple

from celery import Celery

from celery_poison.desk.owner import check_owner, default_actor
from celery_poison.extensions.proposals.proposals import Proposals
from celery_poison.plugin import plugin_of


class Applied(NamedTuple):
    """The rules and policy options that a proposal put in force."""

    version: int
    rules: int
    options: int


class ProposalDesk:
    """Decides for one app. Raises, ``actor`` and ``note`` as of ``Quarantine``."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._ledger = plugin_of(app).open_ledger()

    def apply(self, version: int, *, actor: str = "", note: str = "", rules_only: bool = False) -> Applied:
        """Put a proposal in force, exactly as it was read, in one step; workers obey within a heartbeat.

        A rule that is there already stays as it is. Each rule ends by itself, as long after this as the
        proposal was to last; the policy does not.

        Args:
            rules_only: leave the policy alone.

        Raises:
            ProposalRefused: it is over, or decided already, or there is a newer one.
        """
        check_owner(self._app, self._ledger.read)
        actor = actor or default_actor()
        done = Proposals(self._ledger).apply(version, actor=actor, note=note, rules_only=rules_only)
        return Applied(version, *done)

    def dismiss(self, version: int, *, actor: str = "", note: str = "") -> None:
        """Drop the proposal that waits; nothing of it is proposed again for 30 days.

        Raises:
            ProposalRefused: as :meth:`apply`.
        """
        check_owner(self._app, self._ledger.read)
        Proposals(self._ledger).dismiss(version, actor=actor or default_actor(), note=note)
