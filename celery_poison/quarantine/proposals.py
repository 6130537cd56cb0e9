"""What the pipeline proposes, as a person reads it, applies it or dismisses it (NEW-7).

The command line and Flower share this class, as they share :class:`~celery_poison.quarantine.Quarantine`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from celery import Celery

from celery_poison.ledger import Ledger, policies
from celery_poison.ledger.queries import Queries
from celery_poison.plugin import plugin_of
from celery_poison.proposals import Proposal
from celery_poison.quarantine.owner import check_owner, default_actor


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What is in force now that was not before: so many rules, and options of every guarded task's policy."""

    version: int
    rules: int
    options: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenBack:
    """So many rules are not in force any more; whether the policy is as it was before."""

    rules: int
    policy: bool

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Proposals:
    """The pipeline's proposal, and what of earlier ones is in force.

    Every method raises ``LedgerUnavailable`` when Redis is away or refuses, and for the ledger of an app
    ``SchemaMismatch`` when it belongs to another one.

    >>> waiting = Proposals.of(app).read()
    >>> Proposals.of(app).apply(waiting.version, actor="ann", note="they are all of the same customer")

    Args:
        app: whose ledger it has to be; None: whoever's.
    """

    def __init__(self, ledger: Ledger, app: Celery | None = None) -> None:
        self._ledger, self._app = ledger, app

    @classmethod
    def of(cls, app: Celery) -> Proposals:
        return cls(plugin_of(app).open_ledger(), app)

    def read(self) -> Proposal | None:
        """Return what waits for a person."""
        self._check_owner()
        return Proposal.read(*policies.waiting_proposal(self._ledger))

    def apply(
        self,
        version: int,
        *,
        actor: str = "",
        note: str = "",
        rules_only: bool = False,
        replaced: bool = False,
    ) -> Applied:
        """Put a proposal in force, exactly as it was read, in one step; workers obey within a heartbeat.

        A rule that is there already stays as it is. Each rule ends by itself, as long after this as the
        proposal was to last; the policy does not.

        Args:
            rules_only: leave the policy alone.
            replaced: even if a newer history made a newer proposal since.

        Raises:
            ProposalRefused: it is over, or decided already, or there is a newer one.
        """
        self._check_owner()
        how: dict[str, Any] = {"actor": actor or default_actor(), "note": note}
        rules, options = self._ledger.apply_proposal(version, **how, rules_only=rules_only, replaced=replaced)
        return Applied(version=version, rules=rules, options=options)

    def dismiss(self, version: int, *, actor: str = "", note: str = "") -> None:
        """Drop the proposal that waits; nothing of it is proposed again for 30 days.

        Raises:
            ProposalRefused: as :meth:`apply`.
        """
        self._check_owner()
        self._ledger.dismiss_proposal(version, actor=actor or default_actor(), note=note)

    def take_back(self, *, actor: str = "", note: str = "") -> TakenBack:
        """Take back all that the pipeline put in force and nobody changed since, of every proposal.

        Nothing of it is proposed again for 30 days.
        """
        self._check_owner()
        rules, policy = self._ledger.retract(actor or default_actor(), note)
        return TakenBack(rules=rules, policy=policy)

    def _check_owner(self) -> None:
        if self._app is not None:
            check_owner(self._app, Queries(self._ledger))
