"""What deaths cost is added up once, in the step that records them; what is not known is said (NEW-28)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from celery_poison import causes
from celery_poison.basics.text import span_in_two
from celery_poison.errors import StaleDelivery
from celery_poison.extensions.cost.losses import Loss, Losses, Place, read
from celery_poison.ledger import Keys, Ledger
from celery_poison.ledger.connection import open_redis
from celery_poison.metrics import register
from celery_poison.model import Guilt, Start
from celery_poison.plugin import plugin_of
from celery_poison.states import State
from celery_poison.testing import Supervisor, Worker, wait_until
from tests import PATIENCE, sampled
from tests.cli.conftest import Console
from tests.extensions.toil import STEP, Toil
from tests.metrics.conftest import scraped

WORKER, WEEK = "w1@host/0a1b", 7 * 86_400_000


@pytest.fixture
def ledger(redis_url: str) -> Iterator[Ledger]:
    with open_redis(redis_url) as client:
        yield Ledger(client, Keys("ns"))


def _start(ledger: Ledger, name: str, *, ran: int | None = 5_000, **more: Any) -> Start:
    """Return a start that began so many milliseconds ago, or nobody knows when."""
    start = Start("R", f"0a1b.{name}", WORKER, 7, 0, 1, 0, name, "shop.convert", "celery", 2, 5, 10, 1)
    return start._replace(at_ms=0 if ran is None else ledger.read.now_ms() - ran, **more)


def _on_record(ledger: Ledger, mid: str, start: Start) -> None:
    ledger.client.hset(ledger.keys.running, mid, start.encode())


def _total(ledger: Ledger) -> Loss:
    return sum(read(ledger).days.values(), Loss())


def _is_about(ms: int, wanted: int) -> bool:
    """Whether a run time is that, or more by what this machine has taken since."""
    return wanted <= ms < wanted + 600_000


@pytest.mark.parametrize("event", ["crash", "interrupt"])
def test_NEW_28_a_run_counts_if_it_had_begun_and_its_time_only_if_its_start_is_on_record(
    ledger: Ledger, event: str
) -> None:
    either = causes.SHUTDOWN, causes.NOT_REACHED
    cases = product("RAC", (0, 7), (None, 5_000), (False, True), (1, 0), either)
    for number, (phase, pid, ran, recorded, diverts, cause) in enumerate(cases):
        before, name = _total(ledger), str(number)
        start = _start(ledger, name, ran=ran, phase=phase, pid=pid, diverts=diverts)
        if recorded:  # its process has written down what its worker has not heard of
            _on_record(ledger, name, _start(ledger, name, phase=phase, pid=7, diverts=diverts))
        elif event == "interrupt":  # one that is not on record has no end
            _on_record(ledger, name, start)
        record = getattr(ledger.messages, event)
        for _ in range(2):  # the second time as by a client whose answer was lost
            with suppress(StaleDelivery):
                record(name, start, cause=cause, **({"shared": False} if event == "crash" else {}))
        after = _total(ledger)
        begun = phase == "R" and cause != causes.NOT_REACHED and bool(pid or recorded)
        known = begun and bool(ran or recorded)
        told = (phase, pid, ran, recorded, diverts, cause)
        assert after.runs - before.runs == begun, told
        assert after.unknown - before.unknown == (begun and not known), told
        assert _is_about(after.ms - before.ms, 5_000) == known and known == (after.ms > before.ms), told
        kept = after.kept - before.kept
        assert kept == (after.ms - before.ms if not diverts else 0), told


def test_NEW_28_what_was_thrown_away_counts_once_and_is_not_done_again_if_the_message_is_convicted(
    ledger: Ledger,
) -> None:
    cases = product((False, True), ("R", "C"), (7, 0), ("crash", "interrupt"), (5_000, None))
    for number, (same, phase, pid, event, ran) in enumerate(cases):
        before, name = _total(ledger), str(number)
        died = _start(ledger, name, ran=ran)
        _on_record(ledger, name, died)
        record = getattr(ledger.messages, event)
        record(name, died, cause="oom", incident=name, **({"shared": False} if event == "crash" else {}))
        later = died if same else died._replace(token=f"0a1c.{name}", phase=phase, pid=pid)
        ledger.quarantine.store(name, later, cause="oom", reason="", fields={"body": "x"})
        after = _total(ledger)
        ran_again = not same and phase == "R" and pid > 0
        lost = after.ms - before.ms
        told = (same, phase, pid, event, ran)
        assert _is_about(lost, 5_000) if ran else lost == 0, told
        assert after.runs - before.runs == 1 and after.kept - before.kept == (0 if ran_again else lost), told
        death = read(ledger).deaths[name]
        assert (death.ms, death.kept) == (lost, after.kept - before.kept)
        assert ("done twice" in death.sentence, "quarantine" in death.sentence) == (
            bool(lost and ran_again),
            bool(lost and not ran_again),
        ), told
    before = _total(ledger)
    ledger.quarantine.store("x", _start(ledger, "x"), cause="failure", reason="", fields={"body": "x"})
    assert _total(ledger) == before, "what was never cut off has lost nothing"


@pytest.mark.parametrize("event", ["crash", "interrupt"])
def test_NEW_28_a_run_that_was_taken_for_cut_off_and_lives_is_taken_back_and_counts_once_if_it_dies(
    ledger: Ledger, event: str
) -> None:
    words = {"shared": False} if event == "crash" else {}
    ways = "reclaim", Guilt.CLEARED, Guilt.KEPT, Guilt.UNPROVEN, "acquit"
    for number, (way, diverts, ran) in enumerate(product(ways, (1, 0), (5_000, None))):
        before, name = read(ledger), str(number)
        start, told = _start(ledger, name, ran=ran, diverts=diverts), (way, diverts, ran)
        _on_record(ledger, name, start)
        getattr(ledger.messages, event)(name, start, cause="worker_lost", incident=name, **words)
        assert read(ledger).deaths[name].runs == 1 and _total(ledger).runs == 1, told
        assert (ledger.read.lineage(name) is None) == (event == "crash" and not diverts), told
        if way == "reclaim":
            back = start._replace(worker="w1@host/0a1br1")
            ledger.messages.reclaim(name, back)
            assert read(ledger).days == before.days and name not in read(ledger).deaths, told
            getattr(ledger.messages, event)(name, back, cause="worker_lost", incident="again", **words)
            assert _total(ledger).runs == read(ledger).deaths["again"].runs == 1, told
            ledger.messages.reclaim(name, back)
        elif isinstance(way, Guilt):
            ledger.messages.revoke_strike(name, start.token, name, way)
        else:
            ledger.messages.acquit(name, start, Guilt.UNPROVEN, copy=True)
        assert read(ledger).days == before.days and not read(ledger).deaths, told
    lost = sum(read(ledger).ever.values(), Loss())
    assert lost.runs > 20, "counters never go down"
    start = _start(ledger, "new owner")
    _on_record(ledger, "a", start)
    getattr(ledger.messages, event)("a", start, cause="worker_lost", incident="a", **words)
    _on_record(ledger, "a", start._replace(token="0a1c.9"))
    with pytest.raises(StaleDelivery):
        ledger.messages.reclaim("a", start)
    with pytest.raises(StaleDelivery):
        ledger.messages.revoke_strike("a", start.token, start.id, lost=start)
    assert _total(ledger).runs == 1, "it is run again all the same"


@pytest.mark.parametrize("event", ["crash", "interrupt"])
def test_NEW_28_a_run_time_is_unknown_where_no_clock_gives_one(ledger: Ledger, event: str) -> None:
    words, now = {"shared": False} if event == "crash" else {}, ledger.read.now_ms()
    fence, _ = ledger.fleet.lead("w2@host/b00t", 60_000) or (0, False)
    cases: dict[str, dict[str, Any]] = {
        "it began after the last sign of life of its worker": {"died_at": now / 1000 - 9, "fence": fence},
        "nobody knows when its worker died": {"fence": fence},
    }
    for name, more in cases.items():
        before, start = _total(ledger), _start(ledger, name)
        _on_record(ledger, name, start)
        getattr(ledger.messages, event)(name, start, cause="worker_lost", **words, **more)
        after = _total(ledger)
        assert (after.ms - before.ms, after.unknown - before.unknown) == (0, 1), name
    assert {entry["runtime_ms"] for entry in ledger.read.journal()} == {""}


def test_NEW_28_a_name_is_cut_between_two_letters(ledger: Ledger) -> None:
    for number, letter in enumerate("aä€😀"):
        for lead in range(4):
            start = _start(ledger, f"{number} {lead}", task="x" * lead + 121 * letter)
            ledger.messages.crash(start.id, start, cause="oom", shared=False)
    counted = [*ledger.client.hkeys(ledger.keys.of("cost")), *ledger.client.hkeys(ledger.keys.deaths_by_day)]
    lengths = {len(name.decode().rpartition(" ")[2].encode()) for name in counted}
    assert {length for length in lengths if length > 20} == {117, 118, 119, 120}


def test_NEW_28_sums_are_bounded_and_old_days_go(ledger: Ledger) -> None:
    today, key = ledger.read.now_ms() // 86_400_000, ledger.keys.of("cost")
    old = {f"ms {today - 14} oom a": 3, f"runs in {today - 14} i": 3, f"runs {today - 13} oom a": 5}
    ledger.client.hset(key, mapping={**old, "runs x": 1, "else": 2})
    for number in range(260):
        start = _start(ledger, str(number), task=f"shop.{'x' * 200 if number == 7 else number}")
        ledger.messages.crash(str(number), start, cause="oom", shared=False, incident=f"i{number}")
    looks = ledger.client.info("commandstats")["cmdstat_hkeys"]["calls"]
    for number in range(260, 270):
        start = _start(ledger, str(number), task=f"shop.{number}")
        ledger.messages.crash(str(number), start, cause="oom", shared=False, incident=f"i{number}")
    after = ledger.client.info("commandstats")["cmdstat_hkeys"]["calls"]
    assert after - looks == 10, "one each for counts by task: with all names taken, none is looked for"
    start = _start(ledger, "long", ran=10 * WEEK, task="shop.0")
    ledger.messages.crash("long", start, cause="oom", shared=False)
    fields = {name.decode() for name in ledger.client.hkeys(key)}
    assert not fields & {f"ms {today - 14} oom a", f"runs in {today - 14} i"}
    losses = read(ledger)
    assert losses.days[Place(today - 13, "oom", "a")].runs == 5
    days = [place for place in losses.days if place.day >= today]
    assert len(days) <= 2 * 51 and max(len(place.task) for place in days) == 120
    assert sum(losses.days[place].runs for place in days) == 271
    assert len(losses.ever) == 200 and sum(loss.runs for loss in losses.ever.values()) == 271
    assert 200 <= len(losses.deaths) <= 400
    assert _is_about(losses.ever["oom", "shop.0"].ms, WEEK + 5_000), "no run counts for more than a week"


def test_NEW_28_a_death_is_recorded_whatever_stands_in_the_place_of_the_sums(ledger: Ledger) -> None:
    ledger.client.set(ledger.keys.of("cost"), "of somebody else")
    start = _start(ledger, "a")
    recorded = ledger.messages.crash("a", start, cause="oom", shared=False)
    ledger.quarantine.store("a", start, cause="oom", reason="", fields={"body": "x"})
    assert recorded.history.strikes == 1 and [each.mid for each in ledger.read.kept(State.NDLV)] == ["a"]


@given(st.dictionaries(st.text(max_size=30) | st.sampled_from(["ms 7 a b", "runs in 7 i"]), st.integers()))
def test_NEW_28_whatever_stands_in_the_hash_can_be_read_and_said(fields: dict[str, int]) -> None:
    losses = Losses.of(fields, 7)
    assert isinstance(losses.line, str) and json.dumps(losses.as_json()) and losses.worst is not None


def test_NEW_28_the_sentence_says_what_is_done_twice_what_is_not_and_what_is_not_known() -> None:
    convert, pay = "9 oom shop.convert", "9 shutdown shop.pay"
    fields = {
        f"runs {convert}": 38,
        f"ms {convert}": 10_800_000,
        f"kept {convert}": 600_000,
        f"runs {pay}": 3,
        f"ms {pay}": 1_320_000,
        f"unknown {pay}": 2,
        "runs 8 signal:9 shop.pay": 1,
        "unknown 8 signal:9 shop.pay": 1,
        "runs 3 oom a": 9,
    }
    assert Losses.of(fields, 9).line == (
        "today (UTC): 41 runs cut off (38 oom, 3 shutdown), 3 h 12 min of work done twice, 2 h 50 min of it"
        " by shop.convert; 10 min thrown away with messages that went to quarantine or had been acknowledged;"
        " of 2 of them the run time is not on record; yesterday (UTC): 1 run cut off (1 SIGKILL); its run"
        " time is not on record"
    )
    assert Losses.of(fields, 11).line == "" and Losses.of({}, 9).line == ""
    assert [(cause, task) for cause, task, _ in Losses.of(fields, 9).worst][:2] == [
        ("oom", "shop.convert"),
        ("shutdown", "shop.pay"),
    ]
    least, about = (
        Losses.of(
            {"runs 9 worker_lost a": 1, "ms 9 worker_lost a": 6_400, "runs in 9 i": 1, "ms in 9 i": 6_400}, 9
        ),
        Losses.of(
            {f"{what} 9 {cause} a": 5_000 for what in ("runs", "ms") for cause in ("oom", "frozen")}, 9
        ),
    )
    twice = "1 run cut off (1 worker_lost), at least 6.4 s of work done twice"
    assert least.line == f"today (UTC): {twice}" and least.deaths["i"].spans == ("at least 6.4 s", "")
    assert ", about 10 s of work done twice" in about.line
    died = {"worker_lost": 4, "signal:9": 3, "exit:1": 2, "oom": 2, "exit:3": 2}
    many = Losses.of({f"runs 9 {cause} a": number for cause, number in died.items()}, 9)
    assert "13 runs cut off (4 worker_lost, 3 SIGKILL, 2 exit:1, 2 oom, 2 of other causes)" in many.line
    spans = {0: "0.0 s", 9.94: "9.9 s", 41.4: "41 s", 60: "1 min", 725: "12 min 5 s", 7_200: "2 h"}
    spans |= {90_061: "1 d 1 h", 86_460: "1 d"}
    assert {seconds: span_in_two(seconds) for seconds in spans} == spans


def _stop_all(workers: Supervisor, how: Callable[[Worker], None]) -> None:
    for worker in workers.workers:
        how(worker)


def _hang(toil: Toil, count: int) -> list[Any]:
    """Begin tasks that hang, and wait until each has worked for a while and its worker was heard of since."""
    sent = [toil.begin("convert", 0.1, "hangs") for _ in range(count)]
    toil.await_that(lambda: all(toil.worked().get((each.id, 1), 0) > 1 for each in sent), "they work")
    queries, ids = plugin_of(toil.app).open_ledger().read, {each.id for each in sent}

    def are_heard_of() -> bool:
        beats = queries.leases()
        starts = [start for _, start, _ in queries.running() if start.id in ids]
        return len(starts) == count and all(beats.get(start.worker, 0) > start.at_ms for start in starts)

    toil.await_that(are_heard_of, "heartbeats since they began")
    return sent


@pytest.mark.parametrize(
    ("broker_url", "pool"),
    sampled(
        [("redis", "prefork")],
        [*product(("redis", "rabbitmq"), ("threads", "gevent", "solo")), ("rabbitmq", "prefork")],
    ),
    indirect=["broker_url"],
)
def test_NEW_28_what_deaths_cost_is_what_the_tasks_themselves_have_noted(
    assemble: Callable[..., Toil], broker_url: str, pool: str
) -> None:
    toil = assemble(Toil, broker_url)
    # A process, or where there is none the whole worker, dies once; dies twice and is convicted.
    once, twice = toil.begin("convert", 0.4, "killed"), toil.begin("charge", 0.2, "killed", "killed")
    with toil.supervise(2, pool) as workers:
        workers.wait_ready()
        assert once.get(timeout=PATIENCE) > 1
        toil.await_that(toil.quarantine.list, "it is convicted")
        # Whole workers die with what they run, and others are told to leave at once.
        began = time.monotonic()
        hung = _hang(toil, 2)
        _stop_all(workers, Worker.kill_group)
        spent = time.monotonic() - began
        assert all(each.get(timeout=PATIENCE) > 1 for each in hung)
        if pool == "prefork":
            (left,) = _hang(toil, 1)
            _stop_all(workers, Worker.quit)
            assert left.get(timeout=PATIENCE) > 1
    worked, ledger = toil.worked(), plugin_of(toil.app).open_ledger()
    cut_off = toil.events("crashed", "interrupted")
    lost = read(ledger)
    total = sum(lost.ever.values(), Loss())
    known = [int(entry["runtime_ms"]) for entry in cut_off if entry["runtime_ms"]]
    assert (total.runs, total.unknown) == (len(cut_off), len(cut_off) - len(known)) and len(cut_off) >= 5
    assert total.ms == sum(known), "as the journal has it, to the ms"
    # Where a whole worker died, its run may have begun after the last sign of life.
    assert pool != "prefork" or len(known) == len(cut_off)
    convicted = [entry for entry in cut_off if entry["id"] == twice.id][-1]
    assert sum(loss.kept for loss in lost.days.values()) == int(convicted["runtime_ms"])
    # A process' end is noticed late, never early; that of a worker counts from its last sign of life.
    alone = [entry for entry in cut_off if entry["cause"] not in causes.OF_WORKERS]
    assert bool(alone)
    for entry in alone:
        run = int(entry["deliveries"])
        assert int(entry["runtime_ms"]) / 1000 >= worked[entry["id"], run] - STEP
    ids = {each.id for each in hung}
    of_workers = [entry for entry in cut_off if entry["id"] in ids and entry["incident"]]
    assert len(of_workers) >= 2
    assert all(0 < int(entry["runtime_ms"]) / 1000 <= spent for entry in of_workers)
    if pool == "prefork" and broker_url.startswith("redis"):
        # RabbitMQ may hand it on before its worker has said so: the journal lacks that end, too.
        assert ("shutdown", "toil.convert") in lost.ever
    by_incident = sum(lost.deaths.values(), Loss())
    assert by_incident.runs == sum(bool(entry["incident"]) for entry in cut_off) >= 2

    console = Console(toil.app)
    line = next(each for each in console.out("status").splitlines() if each.startswith("cost "))
    assert " about " in line or " at least " in line
    assert f"{len(cut_off)} runs cut off" in line and "went to quarantine" in line and "toil.convert" in line
    name, loss = max(lost.deaths.items(), key=lambda each: each[1].ms)
    assert loss.sentence in " ".join(console.out("incidents", "show", name).split())
    told = console.out("incidents")
    assert any(f"{each}: " in told for each in lost.deaths)
    died = {each["incident"]: each for each in console.json("incidents")}
    assert died[name]["notes"] == loss.sentence and " at least " in loss.sentence
    assert ("" in died) == any(entry["event"] == "crashed" for entry in alone)
    assert console.json("status")["cost"]["incidents"][name]["ms"] == loss.ms
    registry = CollectorRegistry()
    with register(toil.app, interval=0.1, registry=registry):
        wait_until(lambda: ("cut_off_seconds_total", ("signal:9", "toil.charge")) in scraped(registry))
        seen = scraped(registry)
    labels = "signal:9", "toil.charge"
    assert seen["cut_off_seconds_total", labels] == lost.ever[labels].ms / 1000
