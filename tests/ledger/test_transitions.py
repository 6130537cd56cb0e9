"""Random sequences of transitions, by several clients, never leave the legal states or lose a message."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import hypothesis.strategies as st
import pytest
from celery import Celery
from hypothesis import settings as hypothesis_settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from celery_poison.errors import (
    Fenced,
    IllegalTransition,
    MessageNotFound,
    PoisonError,
    QuarantineFull,
    StaleDelivery,
)
from celery_poison.fleet.recovery import Recovery
from celery_poison.ledger import Keys, Ledger
from celery_poison.ledger.connection import open_redis
from celery_poison.ledger.fleet import DeclaredDead, Silence
from celery_poison.model import Guilt, Start
from celery_poison.states import Event, State
from tests.ledger.grouping import hold_to_records

MIDS = ("m1", "m2", "m3")


def start_of(mid: str, token: str, deliveries: int = 1) -> Start:
    return Start("R", token, "node/boot", 1, 1, deliveries, 0, f"id-{mid}", "shop.render", "q", 2, 5, 10, 1)


class Book:
    """What one message should look like: the model."""

    def __init__(self) -> None:
        self.state: State | None = None  # None: healthy, no record
        self.token = ""
        self.crashes = self.strikes = self.failures = self.releases = 0
        self.candidate = self.probation = False
        self.resolution = ""

    def forget(self) -> None:
        self.__init__()  # type: ignore[misc]

    def ends(self, guilt: Guilt) -> bool:
        """It is acknowledged; return whether that clears it of something."""
        under_suspicion = bool(self.candidate or self.probation or self.strikes)
        if guilt is Guilt.KEPT:  # a retry goes on as it was
            self.state = State.TBDL
        elif guilt is Guilt.UNPROVEN and (self.probation or self.strikes):
            self.candidate, self.state = False, State.DLVD
        else:
            self.forget()
            return under_suspicion
        return False


class LedgerMachine(RuleBasedStateMachine):
    """Drives two clients of one ledger and a model beside them."""

    url: str

    def __init__(self) -> None:
        super().__init__()
        self.client = open_redis(self.url)
        self.client.flushdb()
        keys = Keys("model")
        self.ledgers = [Ledger(open_redis(self.url), keys) for _ in range(2)]
        self.queries = self.ledgers[0].read
        self.tokens = itertools.count(1)
        self.books = {mid: Book() for mid in MIDS}
        self.events: Counter[str] = Counter()

    def teardown(self) -> None:
        self.client.close()
        for ledger in self.ledgers:
            ledger.client.close()

    def ledger(self, which: int) -> Ledger:
        return self.ledgers[which]

    mids = st.sampled_from(MIDS)
    clients = st.integers(0, 1)

    @rule(mid=mids, which=clients)
    def start(self, mid: str, which: int) -> None:
        book = self.books[mid]
        ledger = self.ledger(which)
        recorded = ledger.messages.look(mid, f"id-{mid}", 1000)
        token = f"t{next(self.tokens)}"
        if book.state in (State.NDLV, State.FAIL, State.DLNG):
            assert recorded.kept == book.state or book.state is State.DLNG
            return
        assert ledger.messages.claim(mid, recorded.raw, start_of(mid, token))
        book.token, book.state = token, State.DLNG

    @rule(mid=mids, which=clients, failure=st.booleans(), shared=st.booleans())
    def crash(self, mid: str, which: int, failure: bool, shared: bool) -> None:
        book = self.books[mid]
        if book.state is not State.DLNG:
            return
        start = start_of(mid, book.token)
        arguments: dict[str, Any] = {"cause": "signal:9", "shared": shared, "failure": failure}
        first = self.ledger(which).messages.crash(mid, start, **arguments)
        again = self.ledger(1 - which).messages.crash(mid, start, **arguments)
        assert first == again, "reported twice, counted once"
        book.crashes += 1
        book.strikes += 1
        book.failures += failure
        book.candidate, book.state = True, State.TBDL
        self.events["crashed"] += 1

    @rule(mid=mids, which=clients)
    def rollback(self, mid: str, which: int) -> None:
        book = self.books[mid]
        if book.state is not State.DLNG:
            return
        start = start_of(mid, book.token)
        assert self.ledger(which).messages.rollback(mid, start, cause="x") == self.ledger(
            1 - which
        ).messages.rollback(mid, start, cause="x")
        book.failures += 1
        book.state = State.TBDL
        self.events["rolled_back"] += 1

    @rule(mid=mids, which=clients)
    def interrupt(self, mid: str, which: int) -> None:
        book = self.books[mid]
        if book.state is not State.DLNG:
            return
        start = start_of(mid, book.token)
        self.ledger(which).messages.interrupt(mid, start, cause="shutdown")
        with pytest.raises(StaleDelivery):
            self.ledger(1 - which).messages.interrupt(mid, start, cause="shutdown")
        book.state = State.TBDL
        self.events["interrupted"] += 1

    @rule(mid=mids, which=clients, guilt=st.sampled_from(Guilt))
    def acquit(self, mid: str, which: int, guilt: Guilt) -> None:
        book = self.books[mid]
        if book.state is not State.DLNG:
            return
        self.ledger(which).messages.acquit(mid, start_of(mid, book.token), guilt)
        self.events["cleared"] += book.ends(guilt)

    @rule(mid=mids, which=clients)
    def its_worker_dies_after_the_end_and_a_copy_comes(self, mid: str, which: int) -> None:
        book = self.books[mid]
        if book.state is not State.DLNG:
            return
        ledger = self.ledger(which)
        ledger.client.hset(ledger.keys.done, book.token, "D")
        ledger.messages.duplicate(mid, start_of(mid, f"t{next(self.tokens)}"), reason="finished")
        self.events["duplicate"] += 1
        self.events["cleared"] += book.ends(Guilt.UNPROVEN)

    @rule(mid=mids, which=clients)
    def an_old_token_changes_nothing(self, mid: str, which: int) -> None:
        book = self.books[mid]
        if book.state is not State.DLNG:
            return
        old = start_of(mid, "t0")
        for act in (
            lambda: self.ledger(which).messages.crash(mid, old, cause="x", shared=False),
            lambda: self.ledger(which).messages.rollback(mid, old, cause="x"),
            lambda: self.ledger(which).messages.interrupt(mid, old, cause="x"),
            lambda: self.ledger(which).quarantine.store(
                mid, old, cause="x", reason="x", fields={"body": b""}
            ),
        ):
            with pytest.raises(StaleDelivery):
                act()

    @rule(mid=mids, which=clients, alike=st.sampled_from(["", "f", "/\u202e\"'\\"]))
    def quarantine(self, mid: str, which: int, alike: str) -> None:
        book = self.books[mid]
        start = start_of(mid, book.token or "t0")
        ledger = self.ledger(which)
        fields = {"body": b"\x00" + mid.encode(), "fingerprint": alike}
        keep = {"cause": "signal:9", "reason": "because", "fields": fields}
        if book.state is State.FAIL:
            with pytest.raises(IllegalTransition):
                ledger.quarantine.store(mid, start, **keep)  # type: ignore[arg-type]
            return
        new = ledger.quarantine.store(mid, start, **keep)  # type: ignore[arg-type]
        assert new == (book.state is not State.NDLV)
        self.events["quarantined"] += new
        book.probation, book.state = False, State.NDLV

    @rule(mid=mids, which=clients, note=st.sampled_from(["", "fixed"]))
    def release(self, mid: str, which: int, note: str) -> None:
        book = self.books[mid]
        ledger = self.ledger(which)
        if book.state is not State.NDLV:
            with pytest.raises((IllegalTransition, MessageNotFound)):
                ledger.decisions.decide(mid, "release", "ann")
            return
        number = ledger.decisions.decide(mid, "release", "ann")
        with pytest.raises(PoisonError):
            self.ledger(1 - which).decisions.decide(mid, "fail", "bob")
        self.ledger(1 - which).decisions.undecide_each([(mid, number + 1)])
        for client in self.ledgers:
            client.decisions.complete_release(mid, f"id-{mid}", number, "ann", note)
        book.releases += 1
        book.strikes = book.failures = 0
        book.candidate, book.probation, book.state = True, True, State.TBDL
        self.events["released"] += 1

    @rule(mid=mids, which=clients, event=st.sampled_from([Event.FAILED, Event.DISCARDED]))
    def give_up(self, mid: str, which: int, event: Event) -> None:
        book = self.books[mid]
        ledger = self.ledger(which)
        if book.state is not State.NDLV:
            with pytest.raises((IllegalTransition, MessageNotFound)):
                ledger.decisions.give_up(mid, event, "ann", "")
            return
        ledger.decisions.give_up(mid, event, "ann", "")
        book.state, book.resolution = State.FAIL, event.value
        self.events[event.value] += 1

    @rule(mid=mids, which=clients, force=st.booleans())
    def restore(self, mid: str, which: int, force: bool) -> None:
        book = self.books[mid]
        ledger = self.ledger(which)
        if book.state is not State.FAIL or (book.resolution != "discarded" and not force):
            with pytest.raises((IllegalTransition, MessageNotFound)):
                ledger.decisions.restore(mid, "ann", "", force=force)
            return
        ledger.decisions.restore(mid, "ann", "", force=force)
        book.state = State.NDLV
        self.events["restored"] += 1

    @rule(mid=mids, which=clients)
    def purge(self, mid: str, which: int) -> None:
        book = self.books[mid]
        ledger = self.ledger(which)
        if book.state is not State.FAIL:
            with pytest.raises((IllegalTransition, MessageNotFound)):
                ledger.decisions.purge(mid, "ann", "")
            return
        ledger.decisions.purge(mid, "ann", "")
        book.forget()
        self.events["purged"] += 1

    @rule(mid=mids, which=clients)
    def edit(self, mid: str, which: int) -> None:
        """Its copy leaves at once: what matters here is the original."""
        book = self.books[mid]
        ledger, copy = self.ledger(which), f"copy-{mid}"
        if book.state is not State.NDLV:
            with pytest.raises((IllegalTransition, MessageNotFound)):
                ledger.decisions.edit(mid, "another", {"body": b"changed"}, actor="ann", note="", number=1)
            return
        number = ledger.decisions.decide(mid, "edit", "ann")
        with pytest.raises(StaleDelivery):
            ledger.decisions.edit(mid, copy, {"body": b"changed"}, actor="ann", note="", number=number + 1)
        for client in self.ledgers:  # the answer to the first was lost on the way
            client.decisions.edit(mid, copy, {"body": b"changed"}, actor="ann", note="", number=number)
        kept = self.queries.record(copy)
        assert kept is not None and kept.state == "NDLV" and kept.releases == book.releases
        assert (kept.crashes, kept.strikes, kept.failures) == (book.crashes, book.strikes, book.failures)
        hold_to_records(self.queries, ledger)
        ledger.decisions.give_up(copy, Event.DISCARDED, "ann", "")
        ledger.decisions.purge(copy, "ann", "")
        self.events.update(["edited", "copied", "discarded", "purged"])
        book.state, book.resolution = State.FAIL, "edited"

    @precondition(lambda self: any(b.state is State.FAIL for b in self.books.values()))
    @rule()
    def nothing_of_a_given_up_message_is_lost(self) -> None:
        for mid, book in self.books.items():
            if book.state is State.FAIL:
                assert self.queries.message(mid)["body"] == b"\x00" + mid.encode()

    @invariant()
    def the_ledger_agrees_with_the_model(self) -> None:
        kept = {r.mid: r for r in self.queries.kept(State.NDLV)}
        failed = {r.mid: r for r in self.queries.kept(State.FAIL)}
        running = {mid: start for mid, start, _ in self.queries.running()}
        flagged = {r.mid: r for r in self.queries.candidates()}
        for mid, book in self.books.items():
            assert (mid in kept) == (book.state is State.NDLV)
            assert (mid in failed) == (book.state is State.FAIL)
            assert (mid in running) == (book.state is State.DLNG)
            counts = (book.crashes, book.strikes, book.failures)
            record = kept.get(mid) or failed.get(mid) or self.queries.lineage(f"id-{mid}")
            if record is not None:
                assert (record.crashes, record.strikes, record.failures) == counts
            else:
                assert counts == (0, 0, 0)
            waits = book.state in (State.TBDL, State.DLNG)
            assert (mid in flagged) == (book.candidate and waits)

    @invariant()
    def the_groups_agree_with_the_records(self) -> None:
        hold_to_records(self.queries, self.ledgers[0])

    @invariant()
    def every_transition_is_journalled_exactly_once(self) -> None:
        found = Counter(entry["event"] for entry in self.queries.journal(count=100_000))
        assert found == +self.events


def test_SAP_1_WAS_2_random_transitions_by_two_clients_agree_with_a_model(redis_url: str) -> None:
    machine = type("Machine", (LedgerMachine,), {"url": redis_url})
    run_state_machine_as_test(
        machine, settings=hypothesis_settings(max_examples=25, stateful_step_count=40, deadline=None)
    )


def _race(acts: list[Callable[[], Any]]) -> list[Any]:
    """Run all at the same moment; return what each returned or raised."""
    barrier = threading.Barrier(len(acts))
    results: list[Any] = [None] * len(acts)

    def run(number: int, act: Callable[[], Any]) -> None:
        barrier.wait()
        try:
            results[number] = act()
        except PoisonError as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(acts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_NEW_26_a_worker_that_dies_between_the_end_of_a_trial_and_its_acknowledgement_clears_nobody(
    redis_url: str,
) -> None:
    ledger = Ledger(open_redis(redis_url), Keys("copy"))
    queries = ledger.read
    ledger.messages.claim("m1", b"", start_of("m1", "t1"))
    ledger.messages.crash("m1", start_of("m1", "t1"), cause="worker_lost", shared=True)
    ledger.messages.claim("m1", b"", start_of("m1", "t2", deliveries=2))
    ledger.client.hset(ledger.keys.done, "t2", "D")
    ledger.messages.duplicate(
        "m1", start_of("m1", "t3", deliveries=1), reason="an earlier start already finished"
    )

    assert queries.candidate_ids() == set(), "nothing waits under this name"
    kept = queries.lineage("id-m1")
    assert kept is not None and (kept.state, kept.strikes) == (State.DLVD, 1), "it may have asked for a retry"
    assert 0 < ledger.client.ttl(ledger.keys.lineage("id-m1")) <= 30 * 86_400
    _, copy = queries.journal()
    assert (copy["event"], copy["token"]) == ("duplicate", "t3")


@pytest.fixture
def ledgers(redis_url: str) -> list[Ledger]:
    return [Ledger(open_redis(redis_url), Keys("race")) for _ in range(8)]


def test_TP1_8_of_many_deliveries_of_one_message_exactly_one_is_let_in(ledgers: list[Ledger]) -> None:
    for number in range(25):
        mid = f"m{number}"
        wins = _race(
            [
                lambda i=i, ledger=ledger: ledger.messages.claim(mid, b"", start_of(mid, f"t{i}"))  # noqa: B023
                for i, ledger in enumerate(ledgers)
            ]
        )
        assert sum(wins) == 1


def test_NEW_9_a_claim_that_is_sent_again_since_its_answer_was_lost_is_granted_again(
    ledgers: list[Ledger],
) -> None:
    ours, other = start_of("m1", "t1"), start_of("m1", "t2")
    assert [ledgers[0].messages.claim("m1", b"", start) for start in (ours, ours, other)] == [
        True,
        True,
        False,
    ]


def test_SAP_2_a_death_reported_by_many_at_once_is_one_strike(ledgers: list[Ledger]) -> None:
    for number in range(25):
        mid = f"m{number}"
        start = start_of(mid, "t1")
        assert ledgers[0].messages.claim(mid, b"", start)
        seen = _race(
            [
                lambda ledger=ledger: ledger.messages.crash(mid, start, cause="x", shared=True)  # noqa: B023
                for ledger in ledgers
            ]
        )
        assert {result.history.strikes for result in seen} == {1}


def test_SAP_7_of_two_operators_deciding_at_once_exactly_one_decides(ledgers: list[Ledger]) -> None:
    for number in range(25):
        mid = f"m{number}"
        ledgers[0].quarantine.store(mid, start_of(mid, "t1"), cause="x", reason="x", fields={"body": b"x"})
        seen = _race(
            [lambda ledger=ledger: ledger.decisions.decide(mid, "release", "ann") for ledger in ledgers]  # noqa: B023
        )
        assert sum(isinstance(result, int) for result in seen) == 1


def test_who_completes_a_release_for_its_operator_journals_actor_and_note(ledgers: list[Ledger]) -> None:
    ledger = ledgers[0]
    ledger.quarantine.store("m", start_of("m", "t1"), cause="x", reason="x", fields={"body": b"x"})
    number = ledger.decisions.decide("m", "release", "ann", "fixed in 1.2")
    ledger.decisions.complete_release("m", "m", number)
    told = ledger.read.journal()[-1]
    assert (told["event"], told["actor"], told["note"]) == ("released", "ann", "fixed in 1.2")


def test_NEW_5_what_came_back_is_not_taken_out_by_the_late_end_of_its_release(ledgers: list[Ledger]) -> None:
    """The worker that received the copy was faster than the operator who had published it."""
    ledger, start = ledgers[0], start_of("m", "t1")
    keep = partial(ledger.quarantine.store, "m", cause="x", reason="x", fields={"body": b"x"})
    keep(start)
    number = ledger.decisions.decide("m", "release", "ann")
    ledger.decisions.complete_release("m", start.id, number)
    keep(start._replace(token="t2"))
    ledger.decisions.complete_release("m", start.id, number, "ann")
    assert [record.mid for record in ledger.read.kept(State.NDLV)] == ["m"]
    assert ledger.messages.look("m", start.id, 1000).release == 0, "and a copy of that release is no new one"
    assert ledger.decisions.decide("m", "release", "ann") == number + 1


def test_NEW_5_what_never_reached_a_task_is_under_no_suspicion_when_it_is_released(
    ledgers: list[Ledger],
) -> None:
    ledger, start = ledgers[0], start_of("m", "t1")
    fields = {"body": b"x", "unprocessable": 1}
    ledger.quarantine.store("m", start, cause="unknown_task", reason="x", fields=fields)
    ledger.decisions.complete_release("m", start.id, ledger.decisions.decide("m", "release", "ann"))
    state = ledger.messages.look("m", start.id, 1000)
    assert (state.history.candidate, state.history.probation, state.release) == (False, False, 1)
    assert not [*ledger.read.candidates()]
    assert ledger.client.ttl(ledger.keys.lineage(start.id)) > 0, "no run of an unguarded task clears it"


@pytest.mark.parametrize("deaths", [0, 1])
def test_NEW_27_what_never_began_is_under_no_suspicion_when_its_hold_is_lifted(
    ledgers: list[Ledger], deaths: int
) -> None:
    ledger, start = ledgers[0], start_of("m", "t1")
    for _ in range(deaths):
        ledger.messages.claim("m", b"", start)
        ledger.messages.crash("m", start, cause="signal:9", shared=False)
        start = start._replace(token="t2")
    ledger.quarantine.store("m", start, cause="held", reason="hold 1: n=1", fields={"body": b"x"})
    ledger.decisions.complete_release("m", start.id, ledger.decisions.decide("m", "release", "ann"))
    state = ledger.messages.look("m", start.id, 1000)
    assert (state.history.candidate, state.history.probation) == (deaths > 0, deaths > 0)
    assert state.release == 1 and len([*ledger.read.candidates()]) == deaths


def test_NEW_6_a_release_that_keeps_the_counts_goes_on_with_them_and_what_ends_alive_owes_nothing(
    ledgers: list[Ledger],
) -> None:
    ledger, start = ledgers[0], start_of("m", "t1")
    for count in range(3):
        start = start._replace(token=f"t{count}")
        ledger.messages.claim("m", b"", start)
        ledger.messages.rollback("m", start, cause="rejected")
    start = start._replace(token="t4")
    ledger.messages.claim("m", b"", start)
    ledger.messages.crash("m", start, cause="signal:9", shared=False)
    ledger.quarantine.store("m", start, cause="signal:9", reason="x", fields={"body": b"x"})
    ledger.decisions.complete_release("m", start.id, ledger.decisions.decide("m", "keep", "ann"))
    history = ledger.read.history(start.id)
    assert (history.strikes, history.failures, history.crashes) == (1, 3, 1)
    assert (history.old_strikes, history.old_failures, history.probation) == (1, 3, True)
    start = start._replace(token="t5")
    ledger.messages.claim("m", b"", start)
    ledger.messages.rollback("m", start, cause="rejected")
    start = start._replace(token="t6")
    ledger.messages.claim("m", b"", start)
    ledger.messages.acquit("m", start, Guilt.KEPT)  # a retry
    history = ledger.read.history(start.id)
    assert (history.strikes, history.old_strikes, history.probation) == (1, 1, True)
    assert (history.failures, history.old_failures) == (4, 3)


def test_NEW_5_where_there_is_no_room_nothing_is_kept(ledgers: list[Ledger]) -> None:
    ledger = ledgers[0]
    keep = partial(ledger.quarantine.store, cause="unknown_task", reason="x", fields={"body": b"x"})
    assert keep("m1", start_of("m1", "t1"), limit=1)
    with pytest.raises(QuarantineFull):
        keep("m2", start_of("m2", "t2"), limit=1)
    assert not keep("m1", start_of("m1", "t1"), limit=1), "a copy of what is kept is recognised"
    assert keep("m3", start_of("m3", "t3")), "a conviction is kept in any case"


def test_EMS_3_of_many_monitors_exactly_one_leads_and_its_fence_only_grows(ledgers: list[Ledger]) -> None:
    fences = []
    for _ in range(10):
        seen = _race(
            [
                lambda i=i, ledger=ledger: ledger.fleet.lead(f"w{i}", 60_000)
                for i, ledger in enumerate(ledgers)
            ]
        )
        leading = [i for i, led in enumerate(seen) if led is not None]
        assert len(leading) == 1
        fences.append(seen[leading[0]][0])
        ledgers[0].fleet.retire(f"w{leading[0]}")
    assert fences == sorted(set(fences))


def test_EMS_4_a_monitor_that_lost_its_fence_buries_nobody(ledgers: list[Ledger]) -> None:
    ledger = ledgers[0]
    ledger.fleet.beat("silent", {"node": "n"}, first=True)
    led = ledger.fleet.lead("old", 60_000)
    assert led is not None
    ledger.fleet.retire("old")
    assert ledger.fleet.lead("new", 60_000) is not None
    with pytest.raises(PoisonError, match="took over"):
        ledger.fleet.declare_dead("silent", "i1", Silence.SILENT, 0, led[0])
    assert "silent" in ledger.read.leases()


def test_EMS_2_a_new_monitor_forgets_the_names_of_those_that_led_before(ledgers: list[Ledger]) -> None:
    """A worker that had rejoined led under its first name, died, and its lock had expired."""
    ledger = ledgers[0]
    ledger.fleet.beat("w1@h/a", {"node": "w1@h"})
    for name in ("standalone", "w1@h/a", "w2@h/b"):
        ledger.client.hset(ledger.keys.presence, name, "run")
    ledger.client.hset(ledger.keys.gone, "standalone", 1)
    assert ledger.fleet.lead("w2@h/b", 60_000, "run") is not None
    assert {*ledger.client.hkeys(ledger.keys.presence)} == {b"w1@h/a", b"w2@h/b"}
    assert not ledger.client.exists(ledger.keys.gone)


def test_EMS_1_a_worker_that_beat_in_time_cannot_be_buried(ledgers: list[Ledger]) -> None:
    ledger = ledgers[0]
    ledger.fleet.beat("lively", {"node": "n"}, first=True)
    led = ledger.fleet.lead("monitor", 60_000)
    assert led is not None
    assert ledger.fleet.declare_dead("lively", "i1", Silence.SILENT, 60_000, led[0]) is None
    assert ledger.fleet.declare_dead("lively", "i1", Silence.SILENT, 0, led[0]) == DeclaredDead("worker_lost")
    assert ledger.fleet.declare_dead("lively", "i2", Silence.SILENT, 0, led[0]) is None, "declared dead once"


def test_a_healthy_message_leaves_nothing_behind(ledgers: list[Ledger]) -> None:
    ledger = ledgers[0]
    start = start_of("m1", "t1")
    ledger.messages.claim("m1", b"", start)
    ledger.client.hset(ledger.keys.done, "t1", "D")
    assert ledger.messages.clean_up([("m1", "t1")]) == []
    left = {key for key in ledger.client.keys("*") if key != ledger.keys.journal.encode()}
    assert left == set()


def test_settling_counts_starts_and_ends_that_never_arrived(ledgers: list[Ledger]) -> None:
    ledger = ledgers[0]
    ledger.messages.claim("m1", b"", start_of("m1", "t1"))
    assert ledger.messages.clean_up([("m1", "t1"), ("m2", "t2")]) == [0, 1]


def test_EMS_8_settling_an_old_start_leaves_its_successor_alone(ledgers: list[Ledger]) -> None:
    ledger = ledgers[0]
    ledger.messages.claim("m1", b"", start_of("m1", "t2"))
    ledger.messages.clean_up([("m1", "t1")])
    assert [mid for mid, _, _ in ledger.read.running()] == ["m1"]


def test_NEW_2_a_start_that_was_taken_for_dead_and_ended_alive_has_its_strike_taken_back(
    ledgers: list[Ledger],
) -> None:
    ledger, queries = ledgers[0], ledgers[0].read
    start = start_of("m1", "t1")
    ledger.messages.claim("m1", b"", start)
    ledger.messages.crash("m1", start, cause="worker_lost", shared=True)
    ledger.messages.revoke_strike("m1", "another token", start.id)
    assert [record.strikes for record in queries.candidates()] == [1]
    ledger.messages.revoke_strike("m1", "t1", start.id)
    assert not [*queries.candidates()] and queries.lineage(start.id) is None


def test_NEW_2_while_another_delivery_is_under_way_only_the_flag_is_taken_back(ledgers: list[Ledger]) -> None:
    ledger, queries = ledgers[0], ledgers[0].read
    start = start_of("m1", "t1")
    ledger.messages.claim("m1", b"", start)
    ledger.messages.crash("m1", start, cause="worker_lost", shared=True)
    ledger.messages.claim("m1", b"", start_of("m1", "t2", 2))
    with pytest.raises(StaleDelivery):
        ledger.messages.revoke_strike("m1", "t1", start.id)
    record = queries.lineage(start.id)
    assert record is not None and (record.crashes, record.strikes, record.candidate) == (1, 0, False)


def test_EMS_8_a_start_that_ends_after_its_message_ran_elsewhere_is_stale(ledgers: list[Ledger]) -> None:
    ledger, queries = ledgers[0], ledgers[0].read
    start = start_of("m1", "t1")
    with pytest.raises(StaleDelivery):
        ledger.messages.revoke_strike("m1", "t1", start.id, lost=start)
    (entry,) = (e for e in queries.journal() if e["event"] == "stale")
    assert (entry["token"], entry["task"], entry["worker"]) == ("t1", start.task, start.worker)
    ledger.messages.claim("m1", b"", start)
    ledger.messages.revoke_strike("m1", "t1", start.id, lost=start)
    assert [token for _, (_, token, *_), _ in queries.running()] == ["t1"], "it is its own again"


def test_SAP_7_an_operator_whose_decision_was_taken_over_changes_nothing_any_more(
    ledgers: list[Ledger], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, quick = ledgers[:2]
    slow.quarantine.store("m1", start_of("m1", "t1"), cause="x", reason="x", fields={"body": b"x"})
    first = slow.decisions.decide("m1", "release", "ann")
    monkeypatch.setattr("celery_poison.ledger.decisions.DECISION_PATIENCE_MS", 0)
    second = quick.decisions.decide("m1", "discard", "bob")
    slow.decisions.undecide_each([("m1", first)])
    monkeypatch.setattr("celery_poison.ledger.decisions.DECISION_PATIENCE_MS", 30_000)
    with pytest.raises(PoisonError, match="bob is deciding"):
        slow.decisions.decide("m1", "release", "ann")
    with pytest.raises(StaleDelivery):
        slow.decisions.give_up("m1", Event.FAILED, "ann", "", first)
    quick.decisions.give_up("m1", Event.DISCARDED, "bob", "", second)
    with pytest.raises(IllegalTransition):
        slow.decisions.complete_release("m1", "id-m1", first, "ann", "")


def test_EMS_8_a_monitor_notes_the_end_of_a_start_once_and_only_while_it_is_the_dead_worker_s(
    ledgers: list[Ledger],
) -> None:
    ledger, queries = ledgers[0], ledgers[0].read
    fence, _ = ledger.fleet.lead("w/1", 10_000) or (0, False)
    start = start_of("m1", "t1")
    with pytest.raises(StaleDelivery):
        ledger.messages.finish("m1", start, fence=fence)
    ledger.messages.claim("m1", b"", start)
    with pytest.raises(Fenced):
        ledger.messages.finish("m1", start, fence=fence + 1)
    for _ in range(2):
        ledger.messages.finish("m1", start, fence=fence, release="1.2")
    (entry,) = (e for e in queries.journal() if e["event"] == "finished")
    assert (entry["token"], entry["state"], entry["outcome"], entry["release"]) == (
        "t1",
        "DLVD",
        "success",
        "1.2",
    )
    assert ledger.client.hgetall(ledger.keys.done) == {b"t1": b"D"}
    ledger.messages.claim("m1", start.encode(), start_of("m1", "t2"))
    with pytest.raises(StaleDelivery):
        ledger.messages.finish("m1", start, fence=fence)


def test_EMS_3_a_monitor_that_lost_its_lock_forgets_no_end(ledgers: list[Ledger]) -> None:
    ledger = ledgers[0]
    fence, _ = ledger.fleet.lead("w/1", 10_000) or (0, False)
    ledger.client.hset(ledger.keys.done, "stray", "D")
    with pytest.raises(Fenced):
        ledger.messages.forget_ends(["stray"], fence + 1)
    assert ledger.client.hexists(ledger.keys.done, "stray")


def test_an_end_whose_start_is_gone_is_forgotten_by_the_second_sweep(ledgers: list[Ledger]) -> None:
    ledger = ledgers[0]
    fence, _ = ledger.fleet.lead("w/1", 10_000) or (0, False)
    ledger.messages.claim("m1", b"", start_of("m1", "t1"))
    ledger.client.hset(ledger.keys.done, mapping={"t1": "D", "stray": "D"})
    recovery = Recovery(Celery(set_as_current=False), ledger, lambda *facts: None)
    recovery.sweep_orphans(60, fence)
    assert ledger.client.hlen(ledger.keys.done) == 2, "it may have been on its way"
    recovery.sweep_orphans(60, fence)
    assert ledger.client.hkeys(ledger.keys.done) == [b"t1"]
