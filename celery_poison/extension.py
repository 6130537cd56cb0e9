"""What hangs on the core and could be left out: a class of empty hooks, and how they are bound.

``celery_poison.extensions`` lists all in their order. The core calls hooks by :class:`Extensions`, which has
each as a tuple; where no extension fills it, that is empty, and costs one truth test.

What a hook raises goes to ``complain``, and the task goes on (``basics/calling.py``). ``publishing`` and
``sending`` may refuse; what stands around a body or a step (``tying``, ``quarantining``, …) may raise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar, TypeVarTuple

from celery_poison.basics.parts import Helper, Hold, Panel, Postponed, Round, Service
from celery_poison.basics.rooms import EXTENSIONS
from celery_poison.broker.capture import Outgoing, Sink
from celery_poison.causes import Evidence
from celery_poison.decide import EndedRun
from celery_poison.ledger import Ledger
from celery_poison.model import MessageRecord, Start
from celery_poison.rules.reports import Report

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Around = AbstractContextManager[None]
Stored = Callable[[str], Mapping[str, bytes]]
Arguments = tuple[Any, Mapping[str, Any]]


class Extension:
    """The hooks; an extension overrides those that it needs. One object for each app."""

    def __init__(self, host: Any) -> None:
        self.host = host  # the plugin of the app, whose settings are read when a hook is called

    def installed(self) -> None:
        """The plugin is on its app; once for each."""

    def taking(self, task: str, asked: bool | None) -> Sink | None:
        """Return the sink of a task's messages before the broker; ``asked``: ``apply_async(outbox=...)``."""
        return None

    def publishing(self, producer: Any, message: Any, options: Mapping[str, Any]) -> None:
        """A message of Celery's goes to the broker next; what is raised refuses it."""

    def sending(self, connection: Any, exchange: str, routing_key: str, number: int) -> None:
        """So many messages of the outbox go to the broker next; ``QueueFull`` says how many have room."""

    def rounds(self, ledger: Ledger, announce: Callable[..., object]) -> Iterable[Round]:
        """Return more rounds of the active monitor; ``announce`` sends a signal and its event."""
        return ()

    def send_failed(self, report: Report) -> Iterable[Outgoing]:
        """Return the messages to store in the outbox in the same step as the failure of one in it (TP1-3)."""
        return ()

    def quarantining(
        self, ledger: Ledger, message: Any, mid: str, start: Start, cause: str, reason: str
    ) -> Around:
        """Stand around each try to keep a message in quarantine; an error has it tried again."""
        return nullcontext()

    def discarding(self, ledger: Ledger, record: MessageRecord, stored: Stored, reason: str) -> Around:
        """Stand around the step that discards a message in quarantine; ``stored`` reads it by its mid."""
        return nullcontext()

    def around_body(self, run: Any, task: Any, body: Callable[[], Any], arguments: Arguments) -> Any:
        """Call the body of a task that has options of extensions, or not, and return its result.

        Args:
            run: ``worker.child.RunningTask``.
        """
        return body()

    def within_body(self, run: Any, task: Any) -> Around:
        """Stand around nothing but the body of a task that has options of extensions."""
        return nullcontext()

    def tying(self, run: Any, task: Any) -> Around:
        """Tie what is published in here to the success of a run of a task: set ``run.tied``."""
        return nullcontext()

    def following(self, run: Any, rows: Iterable[T], key: Callable[[T], object] | None) -> Iterator[T] | None:
        """Return an iterator over the rows of a loop of a run, which is followed; None: it is not."""
        return None

    def postponing(self, site: Any, message: Any, task: str, queue: str) -> Iterable[Postponed]:
        """Return decisions about a message whose task is not known here; the first counts.

        It may wait for Redis. What the message's headers get here, it brings along when it comes back.
        """
        return ()

    def unknown_task(self, message: Any, identity: Any, queue: str, reason: str) -> None:
        """Hear that a task is not known here whose message is in quarantine now; it may wait for Redis."""

    def still_awaited(self, ledger: Ledger, awaited: Mapping[str, str]) -> Iterable[str]:
        """Return the mids of parked messages that wait on; ``awaited``: mid -> key that each waits for."""
        return ()

    def ended(self, site: Any, request: Any, run: EndedRun, error: BaseException) -> None:
        """Hear how a run ended without success, once, on the event loop; ``site``: ``worker.site.Site``."""

    def lost(self, ledger: Ledger, mid: str, start: Start, cause: str, reason: str) -> None:
        """Hear of a start whose worker died, before its end is recorded; again if Redis is away meanwhile."""

    def holds(self, site: Any) -> Iterable[Hold]:
        """Return the holds that keep messages of a worker from beginning; asked once, when it starts."""
        return ()

    def keeps_waiting(self, ledger: Ledger) -> Callable[[str, str], bool]:
        """Return a function of queue and task: whether such messages, parked ones too, must go on waiting."""
        return lambda queue, task: False

    def blockade(self, ledger: Ledger, queue: str, begins: bool, actor: str, note: str) -> None:
        """Stop to consume a queue, since nothing is sent to it any more; or go on, since it is again."""

    def acts(self, store: Any) -> Iterable[object]:
        """Return objects whose public methods ``Quarantine`` gets, too; ``store``: ``desk.store.Store``."""
        return ()

    def facts(self, site: Any) -> Iterable[tuple[str, str]]:
        """Return facts that stand in a worker's record beside the core's; asked once, when it starts."""
        return ()

    def helpers(self, site: Any) -> Iterable[Helper]:
        """Return the helpers that work beside a worker, in their own threads; asked once, when it starts."""
        return ()

    def services(self, site: Any, exits: Any) -> Iterable[Service]:
        """Return the services that a worker runs beside its heartbeats; ``exits``: its pool's ``Exits``."""
        return ()

    def testify(self, evidence: Evidence, worker: str, token: str) -> Evidence:
        """Return the evidence of a death in a worker's pool, with additions; that worker asks.

        Args:
            token: of the start that died.
        """
        return evidence

    def recall(self, evidence: Evidence, worker: str, token: str, ledger: Ledger) -> Evidence:
        """Return the evidence of a worker's death, with additions that it left in the ledger; another asks.

        Args:
            token: of a start that died with it; empty: the worker itself died.
        """
        return evidence

    def incident_notes(self, ledger: Ledger, incidents: Sequence[str]) -> Iterable[tuple[str, str]]:
        """Return sentences about deaths of workers, each after its incident."""
        return ()

    def serving(self, app: Any) -> None:
        """A process begins that runs tasks of ``app``: tasks of an extension's own are added here."""

    def panel(self, ledger: Ledger) -> Iterable[Panel]:
        """Return the panels of an overview, the same names each time."""
        return ()


class Extensions:
    """The hooks of some extensions, each as a tuple in their order."""

    def __init__(self, extensions: Sequence[Extension] = ()) -> None:
        self.all = tuple(extensions)

        def bind(hook: Callable[[Extension, *Ts], T]) -> tuple[Callable[[*Ts], T], ...]:
            name = hook.__name__
            filled = (each for each in self.all if getattr(type(each), name) is not hook)
            return tuple(getattr(each, name) for each in filled)

        self.installed, self.serving = bind(Extension.installed), bind(Extension.serving)
        self.taking, self.publishing = bind(Extension.taking), bind(Extension.publishing)
        self.sending, self.send_failed = bind(Extension.sending), bind(Extension.send_failed)
        self.quarantining, self.discarding = bind(Extension.quarantining), bind(Extension.discarding)
        self.around_body, self.within_body = bind(Extension.around_body), bind(Extension.within_body)
        self.tying = bind(Extension.tying)
        self.still_awaited, self.unknown_task = bind(Extension.still_awaited), bind(Extension.unknown_task)
        self.ended, self.lost = bind(Extension.ended), bind(Extension.lost)
        self.holds, self.keeps_waiting = bind(Extension.holds), bind(Extension.keeps_waiting)
        self.blockade, self.acts = bind(Extension.blockade), bind(Extension.acts)
        self.rounds, self.panel = bind(Extension.rounds), bind(Extension.panel)
        self.helpers, self.services = bind(Extension.helpers), bind(Extension.services)
        self.facts, self.postponing = bind(Extension.facts), bind(Extension.postponing)
        self.testify, self.recall = bind(Extension.testify), bind(Extension.recall)
        self.following, self.incident_notes = bind(Extension.following), bind(Extension.incident_notes)

    @classmethod
    def of(cls, host: Any) -> Extensions:
        """Return the extensions of this installation; none where their package was left out."""
        return cls(import_module(EXTENSIONS).load(host) if find_spec(EXTENSIONS) else ())
