"""The play: poison among healthy work, one release, one fail; and what was promised, held against it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from celery import states
from celery.result import AsyncResult
from rich.text import Text

from celery_poison import Quarantine
from celery_poison.demo.app import HANG, POISONS, SEGFAULT, SIGKILL, Poison, expected
from celery_poison.demo.screen import Screen, Snapshot, Watch, deaths
from celery_poison.demo.stage import Load, Stage
from celery_poison.model import MessageRecord
from celery_poison.testing.servers import Interrupted, Interruptions
from celery_poison.text import count_of

MAX_CRASHES = 2
#: Names that a sentence lists; the others are counted.
_SHOWN = 8
_WIDTH = 53
_RETURN = "  A killed worker's messages come back within two minutes here, after an hour by Celery's default."


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision about a poison.

    Attributes:
        held: the quarantine did as it was told, and what should reach the caller did.
        told: what that was, or what went wrong, in a few words.
    """

    poison: str
    held: bool
    told: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Everything that the promises are judged by.

    Attributes:
        results: what the result backend holds for each healthy task, by number; None if nothing.
        kills: how often each poison killed, by its own count and name.
        quarantined: the records in quarantine before anybody decided, by task id.
        candidates: task ids of the candidates, at the end.
        poison_ids: task id of each poison, by name.
        released, failed: what the two decisions came to; None where they were not reached.
    """

    results: Mapping[int, Any]
    kills: Mapping[str, int]
    quarantined: Mapping[str, MessageRecord]
    candidates: tuple[str, ...]
    poison_ids: Mapping[str, str]
    released: Decision | None = None
    failed: Decision | None = None

    def kept(self, name: str) -> MessageRecord | None:
        return self.quarantined.get(self.poison_ids[name])


@dataclass(frozen=True, slots=True)
class Promise:
    promise: str
    held: bool
    evidence: str


def judge(findings: Findings) -> Iterator[Promise]:
    """Hold every promise against the findings: facts in, verdicts out."""
    missing = sorted(n for n, result in findings.results.items() if result != expected(n))
    done = f"{len(findings.results) - len(missing)} of {len(findings.results)}"
    lost = f"; missing or wrong: {_some(missing)}" if missing else ""
    yield Promise("every healthy task was done, as it was sent", not missing, done + lost)
    wrong = [*_not_kept(findings)]
    every = f"{len(POISONS)} of {len(POISONS)}"
    yield Promise("every poison is in quarantine, with the right cause", not wrong, "; ".join(wrong) or every)
    strangers = sorted(findings.quarantined.keys() - set(findings.poison_ids.values()))
    yield Promise("no healthy task is in quarantine", not strangers, _some(strangers) or "none")
    open_ = findings.candidates
    yield Promise("no suspicion is left open", not open_, _some(open_) or "none")
    kills = {name: _kills(findings, name) for name in findings.poison_ids}
    many = "; ".join(f"{name} {times} times" for name, times in kills.items() if times > MAX_CRASHES)
    yield Promise("no poison killed more than twice", not many, many or f"{max(kills.values())} at most")
    yield _decided("a released message, repaired, runs and answers", findings.released)
    yield _decided("a message given up raises where its caller waits", findings.failed)


def _not_kept(findings: Findings) -> Iterator[str]:
    for poison in POISONS:
        record = findings.kept(poison.name)
        if record is None:
            yield f"{poison.name} is not there"
        elif record.cause not in poison.causes:
            yield f"{poison.name} is there for {record.cause}"


def _kills(findings: Findings, name: str) -> int:
    """What the ledger or the poison itself says; the time limit counts for the one that only hangs."""
    record = findings.kept(name)
    own = 0 if name == HANG.name else findings.kills.get(name, 0)
    return max(own, record.crashes, record.failures) if record else own


def _decided(promise: str, decision: Decision | None) -> Promise:
    if decision is None:
        return Promise(promise, False, "not reached")
    return Promise(promise, decision.held, f"{decision.poison}: {decision.told}")


def _some(items: Iterable[Any]) -> str:
    shown = [str(item) for item in items]
    rest = len(shown) - _SHOWN
    return ", ".join(shown[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


# --- the play ---------------------------------------------------------------------------------------

#: Seconds after which a promise that has not come true counts as broken: that everything is settled, that a
#: decision is carried out, that a suspicion is closed whose message has ended.
PATIENCE, DECISION_PATIENCE, CLEARING = 90.0, 30.0, 5.0
TICK = 0.15
ACTOR = "demo"


class Story:
    """Looks on until everything is settled, decides twice, and gathers what happened."""

    def __init__(self, stage: Stage, load: Load, screen: Screen, interruptions: Interruptions) -> None:
        self._stage, self._load, self._screen = stage, load, screen
        self._interruptions = interruptions
        self._quarantine = Quarantine(stage.app)
        self.watch = Watch(stage, load, self._quarantine)

    def play(self) -> Findings:
        self._wait(self._is_settled, PATIENCE)
        before = self._gather()
        released = self._release(SEGFAULT, before)
        failed = self._fail(SIGKILL, before)
        # What was released is cleared a moment after its caller has the result.
        self._wait(lambda _: not self._candidates(), CLEARING)
        self._screen.show(self.watch.look(), last=True)
        return replace(before, released=released, failed=failed, candidates=self._candidates())

    def _wait(self, over: Callable[[Snapshot], bool], patience: float) -> bool:
        deadline = self.watch.seconds + patience
        while self.watch.seconds < deadline and not self._stage.workers.gave_up:
            snapshot = self.watch.look()
            self._screen.show(snapshot)
            if over(snapshot):
                return True
            self._interruptions.pause(TICK)
        return False

    def _is_settled(self, snapshot: Snapshot) -> bool:
        # A healthy task in quarantine is a broken promise, but nothing to wait for.
        finished = snapshot.waiting == snapshot.strangers and snapshot.kept == len(POISONS)
        return finished and not self._candidates()

    def _candidates(self) -> tuple[str, ...]:
        return tuple(record.id for record in self._quarantine.list(candidates=True))

    def _gather(self) -> Findings:
        results = {n: AsyncResult(id, app=self._stage.app) for n, id in self._load.healthy.items()}
        return Findings(
            results={n: found.result if found.successful() else None for n, found in results.items()},
            kills=self._stage.tally.counts("killed"),
            quarantined={record.id: record for record in self._quarantine.list()},
            candidates=self._candidates(),
            poison_ids=self._load.poison,
        )

    def _release(self, poison: Poison, before: Findings) -> Decision | None:
        record = before.kept(poison.name)
        if record is None:
            return None
        self._stage.tally.repair(poison)
        self._screen.note(f"{poison.name} was repaired and is released: it runs once more")
        (outcome,) = self._quarantine.release([record.mid], actor=ACTOR, note="the task was repaired")
        if not outcome.done:
            return Decision(poison.name, False, outcome.error)
        result = AsyncResult(record.id, app=self._stage.app)
        if not self._wait(lambda _: result.state == states.SUCCESS, DECISION_PATIENCE):
            return Decision(poison.name, False, "no result arrived")
        self.watch.released.add(poison.name)
        self._screen.show(self.watch.look())
        return Decision(poison.name, True, repr(result.result))

    def _fail(self, poison: Poison, before: Findings) -> Decision | None:
        record = before.kept(poison.name)
        result = AsyncResult(self._load.poison[poison.name], app=self._stage.app)
        if record is None or result.ready():
            return None
        self._screen.note(f"{poison.name} is given up: somebody waits for its result and must hear of it")
        (outcome,) = self._quarantine.fail([record.mid], actor=ACTOR, note="nobody needs it")
        if not outcome.done:
            return Decision(poison.name, False, outcome.error)
        if not self._wait(lambda _: result.ready(), DECISION_PATIENCE):
            return Decision(poison.name, False, "waited in vain")
        try:
            return Decision(poison.name, False, repr(result.get()))
        except Exception as error:
            return Decision(poison.name, True, type(error).__name__)


def play_plain(
    stage: Stage, load: Load, screen: Screen, interruptions: Interruptions, seconds: float
) -> Snapshot:
    """Watch the same load without the plugin for ``seconds``, or until somebody has seen enough."""
    watch = Watch(stage, load, None)
    with suppress(Interrupted):
        while watch.seconds < seconds:
            screen.show(watch.look())
            interruptions.pause(TICK)
    last = watch.look()
    screen.show(last, last=True)
    # Waiting for these workers to finish their tasks would only let them be killed again.
    stage.grace = 0.0
    return last


# --- the end ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that is known at the end; ``findings`` and ``promises`` only where the plugin was on.

    Attributes:
        starts: how often each healthy task was started, by its own count.
    """

    last: Snapshot
    starts: Mapping[int, int]
    findings: Findings | None = None
    promises: tuple[Promise, ...] = ()

    @property
    def ok(self) -> bool:
        return all(promise.held for promise in self.promises)

    def lines(self) -> list[Text]:
        return [Text(), *(self._guarded() if self.findings else self._compared())]

    def _guarded(self) -> list[Text]:
        lines = [_line(promise) for promise in self.promises]
        if again := sum(times > 1 for times in self.starts.values()):
            why = "ran twice: a poison took their worker along"
            lines += [Text(), Text(f"  {count_of(again, 'healthy task')} {why}.", "dim")]
        broken = sum(not promise.held for promise in self.promises)
        verdict = f"{broken} of {len(self.promises)} promises were broken" if broken else "Every promise held"
        told = f"  {verdict}, after {self.last.seconds:.0f} s."
        return [*lines, Text(), Text(told, "red" if broken else "green")]

    def _compared(self) -> list[Text]:
        last = self.last
        kills = sum(row.kills for row in last.rows)
        killed = f"{count_of(len(last.rows), 'poison message')} killed {kills} times"
        left = f"{last.waiting} of {count_of(last.sent, 'healthy task')} still wait" if last.waiting else ""
        return [
            Text(f"  After {last.seconds:.0f} s without the plugin: {deaths(last)} died.", "bold"),
            Text(f"  {killed}, and would be for ever; {left or 'the healthy tasks slipped through'}."),
            Text(_RETURN),
            Text("  With it, each of them kills twice at most: run the demo without --plain.", "dim"),
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return what ``demo --json`` prints."""
        last, found = self.last, self.findings
        told: dict[str, Any] = {
            "mode": "guarded" if found else "plain",
            "ok": self.ok,
            "seconds": round(last.seconds, 1),
            "healthy": {"sent": last.sent, "done": last.done},
            "deaths": {"workers": last.worker_deaths, "pool_processes": last.pool_deaths},
            "poison": [{"name": row.poison.name, "kills": row.kills} for row in last.rows],
        }
        if found is None:
            return told
        for row, poison in zip(told["poison"], POISONS, strict=True):
            record = found.kept(poison.name)
            row["expected"] = sorted(poison.causes)
            row |= {name: getattr(record, name, None) for name in ("cause", "story", "crashes", "failures")}
        told["release"] = asdict(found.released) if found.released else None
        told["fail"] = asdict(found.failed) if found.failed else None
        told["promises"] = [asdict(promise) for promise in self.promises]
        return told


def _line(promise: Promise) -> Text:
    mark = ("✓", "green") if promise.held else ("✗", "red")
    evidence = (promise.evidence, "dim" if promise.held else "red")
    return Text.assemble("  ", mark, f" {promise.promise:<{_WIDTH}}", evidence)
