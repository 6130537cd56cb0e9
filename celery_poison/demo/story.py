"""The play: poison among healthy work, one release, one fail; and what was promised, held against it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from celery import states
from celery.result import AsyncResult
from rich.text import Text

from celery_poison import Quarantine
from celery_poison.demo.app import HANG, POISONS, SEGFAULT, SIGKILL, expected
from celery_poison.demo.screen import Screen, deaths
from celery_poison.demo.stage import Row, Snapshot, Stage
from celery_poison.testing.servers import Interrupted, Interruptions
from celery_poison.text import count_of

MAX_CRASHES = 2
#: Seconds after which a promise that has not come true counts as broken: that everything is settled, that a
#: decision is carried out, that a suspicion is closed whose message has ended.
PATIENCE, DECISION_PATIENCE, CLEARING = 90.0, 30.0, 5.0
TICK = 0.15
#: Who decides, for the journal.
ACTOR = "demo"
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


@dataclass(frozen=True, slots=True)
class Promise:
    promise: str
    held: bool
    evidence: str


def judge(
    last: Snapshot, results: Mapping[int, Any], released: Decision | None, failed: Decision | None
) -> Iterator[Promise]:
    """Hold every promise against the end: facts in, verdicts out.

    Args:
        results: what the result backend holds for each healthy task, by number; None if nothing.
        released, failed: what the two decisions came to; None where they were not reached.
    """
    missing = sorted(n for n, result in results.items() if result != expected(n))
    done = f"{len(results) - len(missing)} of {len(results)}"
    lost = f"; missing or wrong: {_some(missing)}" if missing else ""
    yield Promise("every healthy task was done, as it was sent", not missing, done + lost)
    wrong = [
        f"{row.poison.name} is {f'there for {row.record.cause}' if row.record else 'not there'}"
        for row in last.rows
        if row.record is None or row.record.cause not in row.poison.causes
    ]
    every = f"{len(POISONS)} of {len(POISONS)}"
    yield Promise("every poison is in quarantine, with the right cause", not wrong, "; ".join(wrong) or every)
    for promise, ids in (
        ("no healthy task is in quarantine", last.strangers),
        ("no suspicion is left open", last.candidates),
    ):
        yield Promise(promise, not ids, _some(ids) or "none")
    kills = {row.poison.name: _kills(row) for row in last.rows}
    many = "; ".join(f"{name} {times} times" for name, times in kills.items() if times > MAX_CRASHES)
    yield Promise("no poison killed more than twice", not many, many or f"{max(kills.values())} at most")
    for promise, decision in (
        ("a released message, repaired, runs and answers", released),
        ("a message given up raises where its caller waits", failed),
    ):
        told = f"{decision.poison}: {decision.told}" if decision else "not reached"
        yield Promise(promise, decision is not None and decision.held, told)


def _kills(row: Row) -> int:
    """What the ledger or the poison itself says; the time limit counts for the one that only hangs."""
    own = 0 if row.poison is HANG else row.kills
    return max(own, row.record.crashes, row.record.failures) if row.record else own


def _some(items: Iterable[Any]) -> str:
    shown = [str(item) for item in items]
    rest = len(shown) - _SHOWN
    return ", ".join(shown[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


# --- the end ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that is known at the end; there are promises only where the plugin was on."""

    last: Snapshot
    promises: tuple[Promise, ...] = ()
    released: Decision | None = None
    failed: Decision | None = None

    @property
    def ok(self) -> bool:
        return all(promise.held for promise in self.promises)

    def lines(self) -> Iterator[Text]:
        last, took = self.last, f"{self.last.seconds:.0f} s"
        yield Text()
        for promise in self.promises:
            mark = ("✓", "green") if promise.held else ("✗", "red")
            evidence = (promise.evidence, "dim" if promise.held else "red")
            yield Text.assemble("  ", mark, f" {promise.promise:<{_WIDTH}}", evidence)
        if self.promises:
            broken = sum(not promise.held for promise in self.promises)
            verdict = (
                f"{broken} of {len(self.promises)} promises were broken" if broken else "Every promise held"
            )
            yield Text(f"\n  {verdict}, after {took}.", "red" if broken else "green")
            return
        kills, waiting = sum(row.kills for row in last.rows), last.sent - last.done
        killed = f"{count_of(len(last.rows), 'poison message')} killed {kills} times"
        left = f"{waiting} of {count_of(last.sent, 'healthy task')} still wait" if waiting else ""
        yield Text(f"  After {took} without the plugin: {deaths(last)} died.", "bold")
        yield Text(f"  {killed}, and would be for ever; {left or 'the healthy tasks slipped through'}.")
        yield Text(_RETURN)
        yield Text("  With it, each of them kills twice at most: run the demo without --plain.", "dim")

    def as_dict(self) -> dict[str, Any]:
        """Return what ``demo --json`` prints."""
        last, guarded = self.last, bool(self.promises)
        told: dict[str, Any] = {
            "mode": "guarded" if guarded else "plain",
            "ok": self.ok,
            "seconds": round(last.seconds, 1),
            "healthy": {"sent": last.sent, "done": last.done},
            "deaths": {"workers": last.worker_deaths, "pool_processes": last.pool_deaths},
            "poison": [{"name": row.poison.name, "kills": row.kills} for row in last.rows],
        }
        if not guarded:
            return told
        for each, row in zip(told["poison"], last.rows, strict=True):
            each["expected"] = sorted(row.poison.causes)
            for name in ("cause", "story", "crashes", "failures"):
                each[name] = getattr(row.record, name, None)
        for name, decision in (("release", self.released), ("fail", self.failed)):
            told[name] = asdict(decision) if decision else None
        told["promises"] = [asdict(promise) for promise in self.promises]
        return told


# --- the play ---------------------------------------------------------------------------------------


class Story:
    """Looks on until everything is settled, decides twice, and judges what happened."""

    def __init__(
        self, stage: Stage, quarantine: Quarantine, screen: Screen, interruptions: Interruptions
    ) -> None:
        self._stage, self._quarantine = stage, quarantine
        self._screen, self._interruptions = screen, interruptions

    def play(self) -> Report:
        self._wait(_is_settled, PATIENCE)
        rows = {row.poison: row for row in self._stage.look().rows}
        released, failed = self._release(rows[SEGFAULT]), self._fail(rows[SIGKILL])
        # What was released is cleared a moment after its caller has the result.
        self._wait(lambda now: not now.candidates, CLEARING)
        last = self._stage.look()
        self._screen.show(last, last=True)
        found = {n: AsyncResult(id, app=self._stage.app) for n, id in self._stage.healthy.items()}
        results = {n: each.result if each.successful() else None for n, each in found.items()}
        promises = tuple(judge(last, results, released, failed))
        return Report(last=last, promises=promises, released=released, failed=failed)

    def _wait(self, over: Callable[[Snapshot], bool], patience: float) -> bool:
        now = self._stage.look()
        deadline = now.seconds + patience
        while now.seconds < deadline and not self._stage.workers.gave_up:
            self._screen.show(now)
            if over(now):
                return True
            self._interruptions.pause(TICK)
            now = self._stage.look()
        return False

    def _release(self, row: Row) -> Decision | None:
        name, record = row.poison.name, row.record
        if record is None:
            return None
        self._stage.tally.repair(row.poison)
        self._screen.note(f"{name} was repaired and is released: it runs once more")
        (outcome,) = self._quarantine.release([record.mid], actor=ACTOR, note="the task was repaired")
        if not outcome.done:
            return Decision(name, False, outcome.error)
        result = AsyncResult(record.id, app=self._stage.app)
        if not self._wait(lambda _: result.state == states.SUCCESS, DECISION_PATIENCE):
            return Decision(name, False, "no result arrived")
        self._stage.released.add(name)
        self._screen.show(self._stage.look())
        return Decision(name, True, repr(result.result))

    def _fail(self, row: Row) -> Decision | None:
        name, record = row.poison.name, row.record
        result = AsyncResult(self._stage.poison[name], app=self._stage.app)
        if record is None or result.ready():
            return None
        self._screen.note(f"{name} is given up: somebody waits for its result and must hear of it")
        (outcome,) = self._quarantine.fail([record.mid], actor=ACTOR, note="nobody needs it")
        if not outcome.done:
            return Decision(name, False, outcome.error)
        if not self._wait(lambda _: result.ready(), DECISION_PATIENCE):
            return Decision(name, False, "waited in vain")
        try:
            return Decision(name, False, repr(result.get()))
        except Exception as error:
            return Decision(name, True, type(error).__name__)


def _is_settled(now: Snapshot) -> bool:
    # A healthy task in quarantine is a broken promise, but nothing to wait for.
    is_done = now.sent - now.done == len(now.strangers) and now.kept == len(POISONS)
    return is_done and not now.candidates


def play_plain(stage: Stage, screen: Screen, interruptions: Interruptions, seconds: float) -> Report:
    """Watch the same load without the plugin for ``seconds``, or until somebody has seen enough."""
    with suppress(Interrupted):
        while (now := stage.look()).seconds < seconds:
            screen.show(now)
            interruptions.pause(TICK)
    last = stage.look()
    screen.show(last, last=True)
    # Waiting for these workers to finish their tasks would only let them be killed again.
    stage.grace = 0.0
    return Report(last=last)
