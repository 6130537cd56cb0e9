"""What people are told without asking, when, and in which words.

A group (task and cause; of kept failures also what they raised) is told when it is new, when it has grown
tenfold since it was told, and again once it has been empty for a while. No other message is worth a page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from celery_poison import causes
from celery_poison.fleet import GateRecord
from celery_poison.model import MessageRecord
from celery_poison.quarantine.search import Group
from celery_poison.text import clean, command, count_of, short

#: A group is told again when it has so many times the messages that it had when it was told.
GROWTH = 10
#: Characters of a task's name, which for an unknown task is whatever somebody sent.
_LENGTH = 120


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
    """What a receiver gets; docs/howto.md tells its fields, which are a contract."""

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

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Wording:
    """Words the notifications of one app, by its name and its ``poison_namespace``."""

    def __init__(self, app: str, namespace: str) -> None:
        self._app = app
        self._namespace = namespace

    def group(self, group: Group, before: int, example: MessageRecord | None) -> Notification:
        """Tell of one group.

        Args:
            before: messages that were in it when it was told; 0: it is new.
            example: one of its messages; None: that has left meanwhile.
        """
        fields: dict[str, Any] = {}
        if example is not None:
            of_example = example.evidence.source, short(example.id), example.arguments
            fields = dict(zip(("source", "id", "arguments"), map(clean, of_example), strict=True))
        task = clean(group.task)[:_LENGTH]
        said = f"{count_of(group.count, 'message')}{f' of {task}' if task else ''} in quarantine"
        said += f" now, {before} when this was told last" if before else ""
        said += f": {causes.describe(group.cause)}"
        said += f", in {fields['source']}" if fields.get("source") else ""
        words = f"poison show {fields['id']}" if fields else "poison groups"
        fields |= {"group": group.group, "task": task, "cause": group.cause, "count": group.count}
        return self._made("group", said, words, before=before, oldest=group.first_seen, **fields)

    def groups(self, groups: Sequence[Group]) -> Notification:
        """Sum several groups up."""
        count, oldest = sum(group.count for group in groups), min(group.first_seen for group in groups)
        said = f"{len(groups)} more groups in quarantine are new or have grown: {count_of(count, 'message')}"
        return self._made("groups", said, "poison groups", count=count, oldest=oldest)

    def gate(self, gate: GateRecord) -> Notification:
        """Tell that the fleet gate has closed."""
        said = f"{gate.story} in a short time: the fleet gate is closed, only a death on trial convicts"
        return self._made("gate_closed", said, "poison status", oldest=gate.closed_at)

    def test(self) -> Notification:
        """Tell nothing, to see whether that arrives."""
        return self._made("test", "this is a test of poison_notify", "poison status")

    def _made(self, kind: str, said: str, words: str, **fields: Any) -> Notification:
        typed = command(words)
        text = clean(f"{self._app}: {said}. {typed}")
        return Notification(
            kind=kind, text=text, app=self._app, namespace=self._namespace, command=typed, **fields
        )
