"""The fleet gate, as an operator sees and lifts it.

The command line and Flower share this class, as they share :class:`~celery_poison.quarantine.Quarantine`.
"""

from __future__ import annotations

from celery import Celery

from celery_poison import signals
from celery_poison.errors import MessageNotFound
from celery_poison.ledger.queries import Queries
from celery_poison.model import GateRecord
from celery_poison.plugin import plugin_of
from celery_poison.quarantine.owner import check_owner, default_actor


class FleetGate:
    """The fleet gate of one app: closed while too many workers have died for their deaths to convict anybody.

    Every method raises ``LedgerUnavailable`` when Redis is away or refuses, and ``SchemaMismatch`` when
    the ledger belongs to another app.

    >>> FleetGate(app).lift(actor="ann", note="the node is back")
    """

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._ledger = plugin_of(app).open_ledger()
        self._queries = Queries(self._ledger)

    def read(self) -> GateRecord:
        """Return how it stands."""
        check_owner(self._app, self._queries)
        return self._queries.gate()

    def lift(self, *, actor: str = "", note: str = "") -> GateRecord:
        """Let deaths convict again; those that closed it are not counted any more.

        Messages that died with their workers meanwhile are still convicted by a trial only.

        Raises:
            MessageNotFound: it is not closed.
        """
        check_owner(self._app, self._queries)
        actor = actor or default_actor()
        if not self._ledger.lift_gate(actor, note):
            raise MessageNotFound("the fleet gate is not closed")
        signals.fleet_gate_lifted.send(sender=None, actor=actor, note=note)
        return self._queries.gate()
