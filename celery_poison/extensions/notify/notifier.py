"""Notifies the receivers in ``poison_notify`` of new groups in quarantine, and of a closed fleet gate.

A group (task and cause; of kept failures also what they raised) is told when it is new, when it has grown
tenfold since it was told, and again once it has been empty for a while. No other message is worth a page.

The active monitor sends, in threads of its own, one for each receiver: one that hangs or refuses
delays no other. A notification is noted in the ledger afterwards: if the monitor dies in between, the next
one sends it again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from celery import Celery
from celery.utils.log import get_logger

from celery_poison import causes, signals
from celery_poison.basics.forking import no_fork
from celery_poison.basics.text import argument, clean, command, count_of, short
from celery_poison.desk.finder import Finder
from celery_poison.desk.search import By, Group
from celery_poison.extensions.holds.pauses import Pause, paused_versions
from celery_poison.extensions.notify.notes import Notes
from celery_poison.extensions.notify.receivers import NotDelivered, Receiver
from celery_poison.extensions.notify.settings import NotifySettings, receivers_of
from celery_poison.fleet.aside import SideThread
from celery_poison.ledger import Ledger
from celery_poison.ledger.fleet_model import GateRecord
from celery_poison.model import MessageRecord
from celery_poison.plugin import Plugin
from celery_poison.rules.links import links_of
from celery_poison.settings import Settings

logger = get_logger("celery_poison")

#: Seconds: after which an empty group is forgotten; the pauses of a receiver that refuses, the first, doubled
#: each time, and the longest.
EMPTY, PAUSE, LONGEST = 600.0, 5.0, 600.0
#: A group is told again when it has so many times the messages that it had when it was told.
GROWTH = 10
#: Accusations that one notification spells out.
MOST_ACCUSED = 5
#: Characters of a task's name, which for an unknown task is any text of its publisher.
_LENGTH = 120
#: Markup of chats, which a text shows as other characters.
_MARKUP = str.maketrans("<>@[]|*~`&", "‹›＠‹›¦∗∼'+")


def due(counts: Mapping[str, int], before: Mapping[str, int], left: float) -> list[tuple[str, ...]]:
    """Return the groups of each notification to be sent now, in order; several in one are summed up.

    Args:
        counts: group -> messages in it.
        before: group -> messages that were in it when it was told.
        left: notifications that may be sent.
    """
    worth = (group for group, count in counts.items() if count >= GROWTH * before.get(group, 0))
    # What is new goes first, then what is large.
    ranked = sorted(worth, key=lambda group: (group in before, -counts[group], group))
    if len(ranked) <= left:
        return [(group,) for group in ranked]
    alone = max(0, int(left) - 1)
    return [*((group,) for group in ranked[:alone]), tuple(ranked[alone:])] if left >= 1 else []


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """The payload for a receiver; docs/howto/notify.md lists its fields, which are a contract."""

    v: int = 1
    kind: str
    text: str
    app: str
    namespace: str
    group: str = ""
    task: str = ""
    cause: str = ""
    source: str = ""
    count: int = 0
    before: int = 0
    oldest: float | None = None
    id: str = ""
    arguments: str = ""
    command: str
    links: Mapping[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Wording:
    """Words the notifications of one app, by its name and its ``poison_namespace`` and ``poison_links``."""

    def __init__(self, app: str, namespace: str, links: Mapping[str, str] | None = None) -> None:
        self._app = app
        self._namespace = namespace
        self._links = links

    def group(self, group: Group, before: int, example: MessageRecord | None) -> Notification:
        """Tell of one group.

        Args:
            before: messages that were in it at its last notification; 0: it is new.
            example: one of its messages; None: that has left meanwhile.
        """
        fields: dict[str, Any] = {}
        if example is not None:
            of_example = example.evidence.source, short(example.id), example.arguments
            fields = dict(zip(("source", "id", "arguments"), map(clean, of_example), strict=True))
            fields["links"] = links_of(self._links, example)
        task = clean(group.task)[:_LENGTH]
        sentence = f"{count_of(group.count, 'message')}{f' of {task}' if task else ''} in quarantine"
        sentence += f" now, {before} at the last notification" if before else ""
        sentence += f": {causes.describe(group.cause)}"
        sentence += f", in {fields['source']}" if fields.get("source") else ""
        words = f"poison show {argument(short(example.id))}" if example is not None else "poison groups"
        fields |= {"group": group.group, "task": task, "cause": group.cause, "count": group.count}
        return self._made("group", sentence, words, before=before, oldest=group.first_seen, **fields)

    def groups(self, groups: Sequence[Group]) -> Notification:
        """Sum several groups up."""
        count, oldest = sum(group.count for group in groups), min(group.first_seen for group in groups)
        said = f"{len(groups)} more groups in quarantine are new or have grown: {count_of(count, 'message')}"
        return self._made("groups", said, "poison groups", count=count, oldest=oldest)

    def gate(self, gate: GateRecord) -> Notification:
        """Tell that the fleet gate has closed."""
        said = f"{gate.story} in a short time: the fleet gate is closed, only a death on trial convicts"
        return self._made("gate_closed", said, "poison status", oldest=gate.closed_at)

    def deploy(self, pause: Pause) -> Notification:
        """Tell that a task is paused, since a new version kills it."""
        words = f"poison resume --task {argument(pause.name)}"
        said = f"{clean(pause.story)}, its messages wait untouched"
        return self._made("deploy", said, words, task=clean(pause.name)[:_LENGTH], oldest=pause.since)

    def blame(self, sentences: Sequence[str]) -> Notification:
        """Report what the analysis of the journal accuses since it last judged."""
        said = "newly accused: " + "; ".join(sentences[:MOST_ACCUSED])
        said += f" and {len(sentences) - MOST_ACCUSED} more" if len(sentences) > MOST_ACCUSED else ""
        return self._made("blame", said, "poison pipeline blame", count=len(sentences))

    def test(self) -> Notification:
        """Tell nothing, to see whether that arrives."""
        return self._made("test", "this is a test of poison_notify", "poison status")

    def _made(self, kind: str, sentence: str, words: str, **fields: Any) -> Notification:
        typed = command(words)
        # A name may be any text: as markup it could call everybody, or hide where a link leads.
        text = clean(f"{self._app}: {sentence.translate(_MARKUP).replace('://', ': //')}.")
        text += f" {typed}" if typed == typed.translate(_MARKUP) else ""
        # These are the owner's, with nothing of a publisher's that is not quoted.
        text += "".join(f" {name}: {url}" for name, url in fields.get("links", {}).items())
        return Notification(
            kind=kind, text=text, app=self._app, namespace=self._namespace, command=typed, **fields
        )


def _id_of(pause: Pause) -> str:
    """Return the id that stands for a group where a pause for a version is meant."""
    return f"deploy-{round(pause.since * 1000)}"


#: Stands for a group where the fleet gate is meant.
GATE = "gate"

#: What is to be told, and what is to be noted then.
_Batch = list[tuple[Notification, dict[str, int]]]


class ReceiverState:
    """One receiver: what it was told, and when it may be told more.

    Args:
        tell: raises ``NotDelivered``.

    Attributes:
        name: for people, without secrets.
        unnoted: notifications that it has and the ledger does not know yet.
        aside: where it is told.
    """

    def __init__(
        self, name: str, key: str, tell: Callable[[Mapping[str, Any]], object], per_minute: float
    ) -> None:
        self.name = name
        self.unnoted: dict[str, int] = {}
        self._end = f":{key}"
        self._tell = tell
        self._per_minute = per_minute
        self._sent: deque[float] = deque()
        self._failures = 0
        self._not_before = 0.0
        self.aside = SideThread("poison-notifier")

    def left(self) -> float:
        """Return how many notifications may be sent now; none while one is, and in a pause."""
        now = time.monotonic()
        while self._sent and self._sent[0] <= now - 60:
            self._sent.popleft()
        is_free = not self.aside.is_busy and now >= self._not_before
        return self._per_minute - len(self._sent) if is_free else 0

    def before(self, notified: Mapping[str, int]) -> dict[str, int]:
        """Return group -> messages that were in it when this receiver was told."""
        own = {**notified, **self.unnoted}.items()
        return {field.removesuffix(self._end): n for field, n in own if field.endswith(self._end)}

    def field(self, group: str) -> str:
        return group + self._end

    def tell(self, notification: Notification) -> bool:
        """Tell the receiver; return whether it took it."""
        try:
            self._tell(notification.as_dict())
        except Exception as error:
            why = error if isinstance(error, NotDelivered) else type(error).__name__
            pause = min(LONGEST, PAUSE * 2 ** min(self._failures, 20))
            self._failures += 1
            self._not_before = time.monotonic() + pause
            story = "celery_poison: %s could not be notified: %s; tried again in %g s"
            logger.warning(story, self.name, why, pause)
            return False
        self._failures = 0
        self._sent.append(time.monotonic())
        return True


class Notifier:
    """The active monitor's part in ``poison_notify``.

    Args:
        announce: sends a signal, and the event of that name.
    """

    def __init__(
        self, app: Celery, ledger: Ledger, settings: Settings, announce: Callable[..., object]
    ) -> None:
        self._ledger, self._notes = ledger, Notes(ledger)
        #: Tasks that are paused for a version, each by what is noted about it.
        self._pauses: dict[str, Pause] = {}
        self._queries = ledger.read
        self._finder = Finder(ledger)
        self._wording = Wording(app.main or "celery", settings.namespace, settings.links)
        self._announce = announce
        own = settings.of(NotifySettings)
        rate = own.notify_per_minute
        self._deliveries = [
            ReceiverState(receiver.name, receiver.key, receiver.tell, rate)
            if (receiver := None if target == "event" else Receiver(target))
            else ReceiverState("event", "event", self._send_event, float("inf"))
            for target in receivers_of(own.notify)
        ]
        self._empty_since: dict[str, float] = {}

    def _send_event(self, payload: Mapping[str, Any]) -> None:
        if payload["kind"] == "group":  # the gate has a signal of its own
            self._announce(signals.group_quarantined, **payload)

    def round(self, fence: int) -> None:
        """Look once, and begin to tell each receiver that is free what it is due.

        Raises:
            LedgerUnavailable: Redis is away.
            Fenced: another monitor took over.
        """
        groups = {group.group: group for group in self.groups()}
        # Before the notes are read: a receiver that is free now has all of its own in the ledger.
        free = [(delivery, left) for delivery in self._deliveries if (left := delivery.left()) >= 1]
        with no_fork():
            notified = self._notes.read()
            now = time.monotonic()
            self._pauses = {_id_of(pause): pause for pause in paused_versions(self._ledger)}
            empty = {field.partition(":")[0] for field in notified}
            empty -= {*groups, *self._pauses, GATE}
            self._empty_since = {group: self._empty_since.get(group, now) for group in empty}
            over = {group for group, since in self._empty_since.items() if now - since >= EMPTY}
            if over:  # they are new when they come back
                gone = {field: "" for field in notified if field.partition(":")[0] in over}
                self._notes.note(fence, changes=gone)
            batches = [self._due(delivery, left, groups, notified) for delivery, left in free]
        for (delivery, _), batch in zip(free, batches, strict=True):
            if batch:
                delivery.aside.do(partial(self._deliver, delivery, batch, fence))

    def groups(self) -> list[Group]:
        """Return the groups of one notification each: by task and cause, kept failures by exception."""
        with no_fork():
            return self._finder.groups(by=By.CAUSE)[0]

    def _due(
        self, delivery: ReceiverState, left: float, groups: Mapping[str, Group], notified: Mapping[str, int]
    ) -> _Batch:
        before, gate, batch = delivery.before(notified), self._queries.gate(), _Batch()
        closed_ms = round((gate.closed_at or 0) * 1000)
        if gate.closed and before.get(GATE) != closed_ms:
            batch.append((self._wording.gate(gate), {delivery.field(GATE): closed_ms}))
        for id, pause in self._pauses.items():
            if id not in before:
                batch.append((self._wording.deploy(pause), {delivery.field(id): 1}))
        counts = {id: group.count for id, group in groups.items()}
        for ids in due(counts, before, left - len(batch)):
            if len(ids) > 1:
                worded = self._wording.groups([groups[id] for id in ids])
            else:
                (group,) = (groups[id] for id in ids)
                example = self._queries.record(group.newest)
                worded = self._wording.group(group, before.get(group.group, 0), example)
            batch.append((worded, {delivery.field(id): counts[id] for id in ids}))
        return batch

    def _deliver(self, delivery: ReceiverState, batch: _Batch, fence: int) -> None:
        for notification, noted in batch:
            self._note(delivery, fence)  # another monitor may have taken over meanwhile
            told = delivery.tell(notification)
            delivery.unnoted |= noted if told else {}
            self._note(delivery, fence, "sent" if told else "failed")
            if not told:
                return

    def _note(self, delivery: ReceiverState, fence: int, outcome: str = "") -> None:
        with no_fork():
            self._notes.note(fence, outcome, delivery.unnoted)
        delivery.unnoted = {}


def send_to_all(
    plugin: Plugin, word: Callable[[Wording], Notification]
) -> Iterator[tuple[str, NotDelivered | None]]:
    """Send a notification to each receiver that is not this very process; yield its name, and what failed."""
    settings = plugin.settings
    notification = word(Wording(plugin.app.main or "celery", settings.namespace)).as_dict()
    targets = receivers_of(settings.of(NotifySettings).notify)
    for receiver in (Receiver(each) for each in targets if each != "event"):
        try:
            receiver.tell(notification)
        except NotDelivered as error:
            yield receiver.name, error
        else:
            yield receiver.name, None
