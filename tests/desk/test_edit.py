"""An edit releases a changed copy: whoever waits for the original hears of it, and each names the other."""

from __future__ import annotations

import base64
import json
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from kombu.compression import decompress

from celery_poison import guarded
from celery_poison.desk.edits import Call, Change, Edited, call_of, changed_call, changed_copy
from celery_poison.errors import PoisonError
from celery_poison.headers import EDITED, MID, RELEASE
from celery_poison.keep.arguments import fingerprint_of
from celery_poison.model import StoredMessage
from tests import PATIENCE
from tests.apps.harness import Fleet
from tests.desk.keeping import Keeper

#: What an edit may change of a message in Redis.
_CHANGED = {"argsrepr", "kwargsrepr", MID, EDITED, RELEASE}


def body_of(raw: dict[str, Any]) -> Any:
    body = raw["body"]
    if raw["properties"]["body_encoding"] == "base64":
        body = base64.b64decode(body)
    if method := raw["headers"].get("compression"):
        body = decompress(body, method)
    return json.loads(body)


def refused(outcome: Edited) -> str:
    assert not outcome.done and not outcome.copy
    return outcome.error


def edited(outcome: Edited) -> str:
    assert outcome.done, outcome
    return outcome.copy


# --- what the copy is ------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", [None, "gzip", "bzip2", "lzma"])
def test_NEW_6_the_copy_has_other_arguments_and_everything_else_of_the_original(
    compression: str | None, fleet: Fleet, keeper: Keeper
) -> None:
    options = {"headers": {"x-tenant": "Grüße"}, "priority": 6, "compression": compression}
    fleet.send("healthy", 1, **options)
    (sent,) = keeper.raw_on_redis()
    mid = keeper.keep(keeper.receive())

    copy = edited(fleet.quarantine.edit(mid, args=[2], actor="ann", note="two was meant"))

    (raw,) = keeper.raw_on_redis()
    assert body_of(raw)[:2] == [[2], {}]
    assert body_of(raw)[2] == body_of(sent)[2]
    told = {**raw["headers"]}
    assert (told[MID], told[EDITED], told["argsrepr"]) == (copy, mid, "(2,)")
    foreign = {name: value for name, value in sent["headers"].items() if name not in _CHANGED}
    assert {name: value for name, value in told.items() if name not in _CHANGED} == foreign
    for properties in (raw["properties"], sent["properties"]):
        properties.pop("delivery_tag")
    assert raw["properties"] == sent["properties"]


def test_NEW_6_original_and_copy_name_each_other_and_the_journal_names_both(
    fleet: Fleet, keeper: Keeper
) -> None:
    mid = keeper.send_and_keep("fleet.healthy", 1)
    copy = edited(fleet.quarantine.edit(mid, args=[2], hold=True, actor="ann", note="two was meant"))
    original, changed = fleet.quarantine.get(mid), fleet.quarantine.get(copy)
    assert (original.state, original.resolution, original.edited_to) == ("FAIL", "edited", copy)
    assert (changed.state, changed.edited_from, changed.id) == ("NDLV", mid, original.id)
    assert (changed.crashes, changed.cause, changed.first_seen) == (2, "signal:9", original.first_seen)
    assert (original.arguments, changed.arguments) == ("1", "2")
    assert not keeper.raw_on_redis(), "held"
    seen = [
        (e["event"], e["mid"], e["state"], e["actor"], e["note"])
        for e in fleet.quarantine.queries.journal()[-2:]
    ]
    assert seen == [
        ("edited", mid, "FAIL", "ann", f"to {copy}: two was meant"),
        ("copied", copy, "NDLV", "ann", f"from {mid}: two was meant"),
    ]
    assert f"Its changed copy is {copy}." in fleet.quarantine.detail(mid).story
    assert f"It is a changed copy of {mid}." in fleet.quarantine.detail(copy).story
    assert fleet.quarantine.release([copy])[0].done
    (raw,) = keeper.raw_on_redis()
    assert body_of(raw)[0] == [2]
    again = keeper.keep(keeper.receive())
    assert (again, fleet.quarantine.get(again).edited_from) == (copy, mid), "known when it is back, too"


def _by_order(order: int, attempt: int) -> int:
    return order


def _breaks(order: int, attempt: int) -> int:
    raise RuntimeError("the function of a user")


@pytest.mark.parametrize("function", [None, _by_order, _breaks])
def test_NEW_3_the_copy_has_the_fingerprint_that_a_worker_gives_it(
    function: Any, fleet: Fleet, keeper: Keeper
) -> None:
    def orders(order: int, attempt: int) -> None: ...

    name = _task(fleet, orders, fingerprint=function)
    keeper.sign()
    mid = keeper.send_and_keep(name, 1, 2)
    edited(fleet.quarantine.edit(mid, args=[7, 2]))
    (copy,) = fleet.quarantine.list(candidates=True)
    secret = fleet.quarantine.queries.fingerprint_secret()
    own = None if function is _breaks else function
    assert copy.fingerprint == fingerprint_of(keeper.receive(), name, secret, own) != ""


def test_SAP_7_chain_chord_and_errbacks_of_the_original_are_those_of_the_copy(
    fleet: Fleet, keeper: Keeper
) -> None:
    healthy = fleet.app.tasks["fleet.healthy"]
    waiting = {"chain": [healthy.si(2)], "chord": healthy.si(3), "link_error": [healthy.s()]}
    fleet.send("healthy", 1, group_id="g", **waiting)
    (sent,) = keeper.raw_on_redis()
    embed = body_of(sent)[2]
    assert embed["chain"] and embed["chord"] and embed["errbacks"]
    edited(fleet.quarantine.edit(keeper.keep(keeper.receive()), args=[9]))
    (raw,) = keeper.raw_on_redis()
    assert body_of(raw) == [[9], {}, embed]


def test_what_the_producer_hides_of_the_arguments_stays_hidden(fleet: Fleet, keeper: Keeper) -> None:
    mid = keeper.send_and_keep("fleet.healthy", 1, argsrepr="(secret)")
    edited(fleet.quarantine.edit(mid, args=[2]))
    (raw,) = keeper.raw_on_redis()
    assert raw["headers"]["argsrepr"] == "(hidden)"


# --- what may be changed ---------------------------------------------------------------------------


def _task(fleet: Fleet, function: Any, **options: Any) -> str:
    name = f"fleet.{function.__name__}"
    guarded(**options)(fleet.app.task(shared=False, name=name)(function))
    return name


def test_single_arguments_are_set_by_the_names_of_the_parameters(fleet: Fleet, keeper: Keeper) -> None:
    def render(page: int, size: str = "a4", *, colour: bool = True) -> None: ...

    mid = keeper.send_and_keep(_task(fleet, render), 1, kwargs={"size": "a3"})
    edited(fleet.quarantine.edit(mid, set={"page": 2, "size": "a5", "colour": False}))
    (raw,) = keeper.raw_on_redis()
    assert body_of(raw)[:2] == [[2], {"size": "a5", "colour": False}]
    assert (raw["headers"]["argsrepr"], raw["headers"]["kwargsrepr"]) == (
        "(2,)",
        "{'size': 'a5', 'colour': False}",
    )


def test_arguments_that_the_task_does_not_take_are_refused_without_force(
    fleet: Fleet, keeper: Keeper
) -> None:
    mid = keeper.send_and_keep("fleet.healthy", 1)
    edit = fleet.quarantine.edit
    assert "fleet.healthy has no argument 'page'; it has: n, seconds" in refused(edit(mid, set={"page": 2}))
    assert "does not take these arguments" in refused(edit(mid, args=[1, 2, 3, 4]))
    assert "cannot be written as JSON" in refused(edit(mid, args=[object()], force=True))
    assert fleet.quarantine.get(mid).state == "NDLV"
    edited(edit(mid, args=[1, 2, 3, 4], force=True))


@pytest.mark.parametrize("change", [{}, {"args": [1]}, {"kwargs": {}}, {"queue": "celery"}])
def test_an_edit_that_changes_nothing_is_refused(change: Any, fleet: Fleet, keeper: Keeper) -> None:
    mid = keeper.send_and_keep("fleet.healthy", 1)
    assert "changes nothing" in refused(fleet.quarantine.edit(mid, **change))


def test_one_and_true_are_not_the_same_to_a_task(fleet: Fleet, keeper: Keeper) -> None:
    mid = keeper.send_and_keep("fleet.healthy", 1)
    edited(fleet.quarantine.edit(mid, args=[True]))
    (raw,) = keeper.raw_on_redis()
    assert body_of(raw)[0] == [True] and raw["headers"]["argsrepr"] == "(True,)"


def test_another_queue_is_one_that_somebody_consumes_and_the_copy_says_so_itself(
    fleet: Fleet, keeper: Keeper
) -> None:
    """A broker in Redis puts back, and Celery retries, where the message says that it was sent."""
    mid = keeper.send_and_keep("fleet.healthy", 1)
    assert "no worker consumes a queue 'bigmem'" in refused(fleet.quarantine.edit(mid, queue="bigmem"))
    keeper.ledger.fleet.beat("w/1", {"node": "w", "queues": "celery,bigmem"}, first=True)
    edited(fleet.quarantine.edit(mid, queue="bigmem"))
    (raw,) = keeper.raw_on_redis("bigmem")
    assert raw["properties"]["delivery_info"] == {"exchange": "", "routing_key": "bigmem"}
    assert not keeper.raw_on_redis("celery")
    (record,) = fleet.quarantine.list(candidates=True)
    assert record.queue == "bigmem"


def test_a_body_that_is_not_JSON_is_never_opened(fleet: Fleet, keeper: Keeper) -> None:
    mid = keeper.send_and_keep("fleet.healthy", 1, serializer="pickle")
    error = refused(fleet.quarantine.edit(mid, args=[2], force=True))
    assert "application/x-python-serialize, which is never decoded outside a worker" in error
    assert fleet.quarantine.get(mid).state == "NDLV"


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
_BODIES = st.one_of(
    st.binary(),
    _JSON.map(lambda value: json.dumps(value).encode()),
    st.tuples(st.lists(_JSON), st.dictionaries(st.text(), _JSON), _JSON).map(
        lambda v: json.dumps(v).encode()
    ),
    st.sampled_from([b"[" * 100_000, b"[" + b"[" * 900 + b"]" * 900 + b",{},{}]"]),
)


@given(body=_BODIES, headers=st.dictionaries(st.sampled_from(["argsrepr", "kwargsrepr", "x"]), _JSON))
@hypothesis_settings(max_examples=120, deadline=None)
def test_whatever_a_body_is_it_is_edited_or_refused_and_only_the_arguments_change(
    body: bytes, headers: dict[str, Any]
) -> None:
    stored = StoredMessage(
        body=body, content_type="application/json", content_encoding="utf-8", headers=headers
    )
    try:
        old = call_of(stored)
        new = changed_call(old, Change(args=[1], values={}), None)
        copy = changed_copy(stored, old, new, "m", "copy")
    except PoisonError:
        return
    assert repr(call_of(copy)) == repr(Call([1], old.kwargs, old.embed))


# --- twice, and in the wrong moment ----------------------------------------------------------------


def test_the_same_edit_twice_has_one_effect(fleet: Fleet, keeper: Keeper) -> None:
    mid = keeper.send_and_keep("fleet.healthy", 1)
    copy = edited(fleet.quarantine.edit(mid, args=[2], actor="ann"))
    assert f"was edited by ann: its changed copy is {copy}" in refused(fleet.quarantine.edit(mid, args=[2]))
    id = fleet.quarantine.get(mid).id
    assert "it was released" in refused(fleet.quarantine.edit(id, args=[2]))
    assert len(keeper.raw_on_redis()) == 1


def test_a_copy_that_the_broker_does_not_take_waits_in_quarantine_and_is_named(
    fleet: Fleet, keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    from celery_poison.broker.port import NotPublished
    from celery_poison.broker.publish import Publisher

    mid = keeper.send_and_keep("fleet.healthy", 1)

    def refuse(self: Publisher, parcels: list[Any]) -> list[Exception]:
        return [NotPublished("the broker did not take the message")] * len(parcels)

    with monkeypatch.context() as patch:
        patch.setattr(Publisher, "publish_each", refuse)
        outcome = fleet.quarantine.edit(mid, args=[2])
    assert not outcome.done and "not released: the broker did not take" in outcome.error
    assert [record.mid for record in fleet.quarantine.list()] == [outcome.copy]
    assert fleet.quarantine.release([outcome.copy])[0].done


def test_an_edited_original_is_restored_only_by_force_since_its_copy_may_run_too(
    fleet: Fleet, keeper: Keeper
) -> None:
    mid = keeper.send_and_keep("fleet.healthy", 1)
    edited(fleet.quarantine.edit(mid, args=[2]))
    (outcome,) = fleet.quarantine.restore([mid])
    assert "its changed copy replaces it" in outcome.error
    assert fleet.quarantine.restore([mid], force=True)[0].done
    second = edited(fleet.quarantine.edit(mid, args=[3], hold=True))
    assert fleet.quarantine.get(second).edited_to == ""


def test_after_an_edit_show_of_the_old_id_tells_what_became_of_the_copy(fleet: Fleet, keeper: Keeper) -> None:
    result = fleet.send("healthy", 1)
    mid = keeper.keep(keeper.receive())
    copy = edited(fleet.quarantine.edit(mid, args=[2], hold=True))
    assert f"Its changed copy is {copy}. Of the copy: In quarantine." in fleet.quarantine.detail(mid).story
    assert fleet.quarantine.release([copy])[0].done
    assert "Of the copy: Waits in its queue." in fleet.quarantine.detail(mid).story
    with fleet.worker(pool="solo"):
        assert result.get(timeout=PATIENCE) == 2
        fleet.await_that(lambda: "Of the copy: It has ended" in fleet.quarantine.detail(mid).story, "told")
    assert "It was released by" in fleet.quarantine.detail(mid).story
    for id in (result.id, mid[:8], copy):
        assert "; then it ended well" in fleet.quarantine.detail(id).story, id
