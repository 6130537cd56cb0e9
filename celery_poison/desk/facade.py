"""The quarantine as a whole: one class for command line, Flower and Python, composed of its parts."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from celery import Celery

from celery_poison.basics.calling import gather
from celery_poison.desk.acts import Acts
from celery_poison.desk.decisions import Decisions
from celery_poison.desk.edits import Edits
from celery_poison.desk.lines import Lines
from celery_poison.desk.reading import Reading
from celery_poison.desk.releasing import Releases
from celery_poison.desk.rules import Rules
from celery_poison.desk.store import Store
from celery_poison.plugin import plugin_of

P = ParamSpec("P")
R = TypeVar("R")


def _of(part: str, method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Quarantine, P], R]:
    """Return a method of the whole that is a part's, with its signature and docstring."""

    @wraps(method)
    def call(self: Quarantine, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return method(getattr(self, part), *args, **kwargs)

    return call


class Quarantine:
    """Messages in quarantine, those given up, and what a person can do about both (SAP-7).

    Acts on messages take whole ids (mids or task ids) and ``on_outcome``, which hears of each message at
    once, and return one :class:`Outcome` for each id; one message's refusal does not stop the others. Every
    act takes ``actor`` (who decided; default: login@host) and ``note`` (why), both journalled.

    Args:
        app: the Celery app; the plugin is installed on it if it is not yet.

    Every method raises ``LedgerUnavailable`` when Redis is away or refuses, and loses nothing then; acts
    raise ``SchemaMismatch`` when the ledger belongs to another app.

    >>> Quarantine(app).release([record.mid], actor="ann", note="fixed in 1.2.3")
    """

    def __init__(self, app: Celery) -> None:
        self._store = store = Store(app)
        self.queries = store.queries
        decisions = Decisions(store)
        self.reading = Reading(store)
        self.finder = self.reading.finder
        self.acts = Acts(store, decisions)
        self.releases = Releases(store, decisions)
        self.edits = Edits(store, decisions, self.releases.release)
        self.lines = Lines(store)
        self.rules = Rules(store)
        plugin = plugin_of(app)
        self._acts = gather(plugin.extensions.acts, plugin.complain, store)

    check_owner = _of("_store", Store.check_owner)

    list = _of("reading", Reading.list)
    groups = _of("reading", Reading.groups)
    get = _of("reading", Reading.get)
    message = _of("reading", Reading.message)
    detail = _of("reading", Reading.detail)
    fingerprint_of = _of("reading", Reading.fingerprint_of)
    history = _of("reading", Reading.history)
    journal = _of("reading", Reading.journal)
    incident_notes = _of("reading", Reading.incident_notes)

    fail = _of("acts", Acts.fail)
    discard = _of("acts", Acts.discard)
    restore = _of("acts", Acts.restore)
    purge = _of("acts", Acts.purge)

    release = _of("releases", Releases.release)
    schedule = _of("releases", Releases.schedule)
    unschedule = _of("releases", Releases.unschedule)

    edit = _of("edits", Edits.edit)
    draft = _of("edits", Edits.draft)

    export = _of("lines", Lines.export)
    import_ = _of("lines", Lines.import_)

    blocks = _of("rules", Rules.blocks)
    block_task = _of("rules", Rules.block_task)
    block_fingerprint = _of("rules", Rules.block_fingerprint)
    unblock = _of("rules", Rules.unblock)
    policies = _of("rules", Rules.policies)
    set_policy = _of("rules", Rules.set_policy)
    unset_policy = _of("rules", Rules.unset_policy)
    gate = _of("rules", Rules.gate)
    lift_gate = _of("rules", Rules.lift_gate)

    if not TYPE_CHECKING:  # else a wrong name of ours would be right

        def __getattr__(self, name: str) -> Any:
            """Return what an extension can do, too; its users go to its own desk."""
            for part in () if name.startswith("_") else self._acts:
                if hasattr(part, name):
                    return getattr(part, name)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
