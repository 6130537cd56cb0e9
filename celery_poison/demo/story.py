"""``celery-poison demo``: poison among healthy work, one release, one fail; and whether the promises held."""

from __future__ import annotations

import json
import logging
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import click
from celery import states
from celery.result import AsyncResult
from rich.text import Text

from celery_poison import Quarantine
from celery_poison.basics.text import count_of, some_of
from celery_poison.demo.app import HANG, POISONS, SEGFAULT, SIGKILL, expected
from celery_poison.demo.programs import Interrupted, Interruptions
from celery_poison.demo.screen import Screen, deaths
from celery_poison.demo.stage import SLOTS, WORKERS, DemoStage, PoisonRow, StageSnapshot, open_stage, plan

MAX_CRASHES = 2
#: Seconds after which a promise that has not come true counts as broken: that everything is settled, that a
#: decision is carried out, that a suspicion is closed whose message has ended.
PATIENCE, DECISION_PATIENCE, CLEARING = 90.0, 30.0, 5.0
TICK = 0.15
#: Who decides, for the journal.
ACTOR = "demo"
_WIDTH = 53


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
    last: StageSnapshot, results: Mapping[int, Any], released: Decision | None, failed: Decision | None
) -> Iterator[Promise]:
    """Hold every promise against the end: facts in, verdicts out.

    Args:
        results: what the result backend holds for each healthy task, by number; None if nothing.
        released, failed: what the two decisions came to; None where they were not reached.
    """
    missing = sorted(n for n, result in results.items() if result != expected(n))
    done = f"{len(results) - len(missing)} of {len(results)}"
    lost = f"; missing or wrong: {some_of(map(str, missing))}" if missing else ""
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
        yield Promise(promise, not ids, some_of(ids) or "none")
    kills = {row.poison.name: _kills(row) for row in last.rows}
    many = "; ".join(f"{name} {times} times" for name, times in kills.items() if times > MAX_CRASHES)
    yield Promise("no poison killed more than twice", not many, many or f"{max(kills.values())} at most")
    for promise, decision in (
        ("a released message, repaired, runs and answers", released),
        ("a message given up raises where its caller waits", failed),
    ):
        outcome = f"{decision.poison}: {decision.told}" if decision else "not reached"
        yield Promise(promise, decision is not None and decision.held, outcome)


def _kills(row: PoisonRow) -> int:
    """What the ledger or the poison itself says; the time limit counts for the one that only hangs."""
    own = 0 if row.poison is HANG else row.kills
    return max(own, row.record.crashes, row.record.failures) if row.record else own


# --- the end ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoReport:
    """Everything that is known at the end; there are promises only where the plugin was on."""

    last: StageSnapshot
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
        yield Text(
            "  A killed worker's messages come back in two minutes here, in an hour by Celery's default."
        )
        yield Text("  With it, each of them kills twice at most: run the demo without --plain.", "dim")

    def as_dict(self) -> dict[str, Any]:
        """Return the object that ``demo --json`` prints."""
        last, guarded = self.last, bool(self.promises)
        facts: dict[str, Any] = {
            "mode": "guarded" if guarded else "plain",
            "ok": self.ok,
            "seconds": round(last.seconds, 1),
            "healthy": {"sent": last.sent, "done": last.done},
            "deaths": {"workers": last.worker_deaths, "pool_processes": last.pool_deaths},
            "poison": [{"name": row.poison.name, "kills": row.kills} for row in last.rows],
        }
        if not guarded:
            return facts
        for each, row in zip(facts["poison"], last.rows, strict=True):
            each["expected"] = sorted(row.poison.causes)
            for name in ("cause", "story", "crashes", "failures"):
                each[name] = getattr(row.record, name, None)
        for name, decision in (("release", self.released), ("fail", self.failed)):
            facts[name] = asdict(decision) if decision else None
        facts["promises"] = [asdict(promise) for promise in self.promises]
        return facts


# --- the play ---------------------------------------------------------------------------------------


class Story:
    """Looks on until everything is settled, decides twice, and judges what happened."""

    def __init__(self, stage: DemoStage, screen: Screen, interruptions: Interruptions) -> None:
        self._stage, self._screen, self._interruptions = stage, screen, interruptions

    def play_plain(self, seconds: float) -> DemoReport:
        """Watch the load without the plugin for so long, or until somebody has seen enough."""
        with suppress(Interrupted):
            self._wait(lambda now: now.seconds >= seconds, seconds)
        # Waiting for these workers to finish their tasks would only let them be killed again.
        self._stage.grace = 0.0
        return DemoReport(last=self._last_look())

    def play(self, quarantine: Quarantine) -> DemoReport:
        self._quarantine = quarantine
        self._wait(_is_settled, PATIENCE)
        rows = {row.poison: row for row in self._stage.look().rows}
        released, failed = self._release(rows[SEGFAULT]), self._fail(rows[SIGKILL])
        # What was released is cleared a moment after its caller has the result.
        self._wait(lambda now: not now.candidates, CLEARING)
        last = self._last_look()
        found = {n: AsyncResult(id, app=self._stage.app) for n, id in self._stage.healthy.items()}
        results = {n: each.result if each.successful() else None for n, each in found.items()}
        promises = tuple(judge(last, results, released, failed))
        return DemoReport(last=last, promises=promises, released=released, failed=failed)

    def _last_look(self) -> StageSnapshot:
        last = self._stage.look()
        self._screen.show(last, last=True)
        return last

    def _wait(self, over: Callable[[StageSnapshot], bool], patience: float) -> bool:
        now = self._stage.look()
        deadline = now.seconds + patience
        while now.seconds < deadline and not self._stage.workers.gave_up:
            self._screen.show(now)
            if over(now):
                return True
            self._interruptions.pause(TICK)
            now = self._stage.look()
        return False

    def _release(self, row: PoisonRow) -> Decision | None:
        name, record = row.poison.name, row.record
        if record is None:
            return None
        self._stage.tally.repair(row.poison)
        self._screen.note(f"{name} was repaired and is released: it runs once more")
        result = AsyncResult(record.id, app=self._stage.app)
        (outcome,) = self._quarantine.release([record.mid], actor=ACTOR, note="the task was repaired")
        answered = outcome.done and self._wait(lambda _: result.state == states.SUCCESS, DECISION_PATIENCE)
        if not answered:
            return Decision(name, False, outcome.error or "no result arrived")
        self._stage.released.add(name)
        self._screen.show(self._stage.look())
        return Decision(name, True, repr(result.result))

    def _fail(self, row: PoisonRow) -> Decision | None:
        name, record = row.poison.name, row.record
        result = AsyncResult(self._stage.poison[name], app=self._stage.app)
        if record is None or result.ready():
            return None
        self._screen.note(f"{name} is given up: its caller waits for a result and gets a failure")
        (outcome,) = self._quarantine.fail([record.mid], actor=ACTOR, note="it is not needed")
        if not (outcome.done and self._wait(lambda _: result.ready(), DECISION_PATIENCE)):
            return Decision(name, False, outcome.error or "waited in vain")
        try:
            return Decision(name, False, repr(result.get()))
        except Exception as error:
            return Decision(name, True, type(error).__name__)


def _is_settled(now: StageSnapshot) -> bool:
    # A healthy task in quarantine is a broken promise, but nothing to wait for.
    is_done = now.sent - now.done == len(now.strangers) and now.kept == len(POISONS)
    return is_done and not now.candidates


# --- the command -----------------------------------------------------------------------------------

_EPILOG = """\b
Examples:
  celery-poison demo                      watch it; about half a minute
  celery-poison demo --plain              the same load without the plugin
  celery-poison demo --seed 7 -n 1000     more work, the poison elsewhere in it
  celery-poison demo --json | jq .ok      for a script
  celery-poison demo --keep               look around afterwards, until Ctrl-C

Exit status: 0 every promise held, 1 one was broken, 2 wrong usage, 3 no Redis, 128 + signal when stopped.
"""


@click.command("demo", epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-n", "--healthy", type=click.IntRange(1, 100_000), default=300, show_default=True,
              help="How many healthy tasks are sent.")  # fmt: skip
@click.option(
    "--seed", type=int, default=1, show_default=True, help="Decides where among them the poison is."
)
@click.option("--plain", "plain_", is_flag=True, help="Leave the plugin out, and see the crash loop.")
@click.option("--seconds", type=click.FloatRange(1, 600), default=20.0, show_default=True,
              help="How long --plain goes on; Ctrl-C ends it sooner.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON summary on stdout; progress goes to stderr.")
@click.option("--keep", is_flag=True, help="Afterwards leave servers and workers running until Ctrl-C.")
def demo(healthy: int, seed: int, plain_: bool, seconds: float, as_json: bool, keep: bool) -> None:
    """Poison among healthy work, and what becomes of both.

    Starts a private Redis and two real workers, sends healthy tasks with one message of every deadly
    kind among them, and shows how each is quarantined while the healthy ones finish; then one is
    released, one is given up. Needs nothing that runs already, and leaves nothing behind.
    """
    screen = Screen(sys.stderr if as_json else sys.stdout, guarded=not plain_)
    # Else the last resort of logging prints their warnings into the panel when Redis stops.
    for name in ("celery", "celery_poison", "kombu"):
        logging.getLogger(name).addHandler(logging.NullHandler())
    try:
        with Interruptions() as interruptions, open_stage(plain=plain_) as stage:
            report = _play(stage, screen, interruptions, healthy, seed, seconds)
            _tell(report, screen, stage, as_json=as_json)
            interruptions.pause()
            if keep:
                _keep_running(stage, screen, interruptions)
        status = 0 if report.ok else 1
    except Interrupted as interrupted:
        screen.close()
        screen.say(Text("\n  Stopped; nothing is left behind.", "dim"))
        status = interrupted.exit_status
    except FileNotFoundError as error:
        click.echo(f"Error: {error}", err=True)
        status = 3
    finally:
        screen.close()
    sys.exit(status)


def _play(
    stage: DemoStage, screen: Screen, interruptions: Interruptions, healthy: int, seed: int, seconds: float
) -> DemoReport:
    """Send the load and look on; ``seconds``: how long, where the plugin is left out."""
    kind = "" if stage.quarantine else ", without the plugin"
    sent = f"{healthy} healthy tasks with {len(POISONS)} poison messages among them"
    fleet = f"{WORKERS} workers of {SLOTS} processes"
    screen.say(Text(f"celery-poison demo{kind}", "bold"), Text(f"{sent}; {fleet}\n", "dim"))
    interruptions.pause()
    stage.send(plan(healthy, seed))
    stage.workers.start()
    story = Story(stage, screen, interruptions)
    return story.play(stage.quarantine) if stage.quarantine else story.play_plain(seconds)


def _tell(report: DemoReport, screen: Screen, stage: DemoStage, *, as_json: bool) -> None:
    screen.close()
    if as_json:
        click.echo(json.dumps(report.as_dict(), indent=2))
    else:
        screen.say(*report.lines())
    if not report.ok:
        complaints = (Text(f"  {line}", "dim") for line in stage.complaints())
        screen.say(Text("\n  The workers' last complaints:", "red"), *complaints)


def _keep_running(stage: DemoStage, screen: Screen, interruptions: Interruptions) -> None:
    environment = " ".join(f"{name}={shlex.quote(value)}" for name, value in stage.environment.items())
    screen.say(
        Text("\n  Everything goes on running until Ctrl-C. To look around:", "bold"),
        f"  redis-cli -u {stage.redis_url}",
        f"  {environment} celery -A celery_poison.demo.app poison list",
        f"  {environment} celery -A celery_poison.demo.app inspect active",
    )
    with suppress(Interrupted):
        while True:
            interruptions.pause(0.2)
