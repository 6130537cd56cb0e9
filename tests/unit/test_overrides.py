"""Policies overridden at run time: who wins, and that garbage in Redis harms nobody (EMS-9)."""

from __future__ import annotations

import json
import logging
from typing import Any

import hypothesis.strategies as st
import pytest
from celery import Celery
from hypothesis import given, settings

from celery_poison import guarded
from celery_poison.errors import ConfigurationError
from celery_poison.plugin import Plugin, plugin_of
from celery_poison.policy import OVERRIDABLE, Overrides, Policy, check_options, own_options
from celery_poison.rules.reports import ReportKind
from celery_poison.settings import Settings

ordinary = st.integers(1, 10**12)
may_be_none = dict.fromkeys(("max_payload_bytes", "block_fingerprint_after"), ordinary | st.none())
values = dict.fromkeys(OVERRIDABLE, ordinary) | may_be_none
options = st.fixed_dictionaries({}, optional=values)
#: What the code may say: None there means that it says nothing.
in_code = st.fixed_dictionaries({}, optional=dict.fromkeys(OVERRIDABLE, ordinary))
task_names = st.sampled_from(["shop.convert", "shop.render", "*"])


def _app(**options: Any) -> Celery:
    app = Celery("unit", broker="redis://localhost:1", set_as_current=False)

    @guarded(**options)
    @app.task(shared=False, name="shop.convert")
    def convert() -> None: ...

    @guarded
    @app.task(shared=False, name="shop.render")
    def render() -> None: ...

    return app


def _policy(plugin: Plugin, task: str = "shop.convert") -> Policy:
    return plugin.policies[task][0]


@settings(max_examples=50)
@given(for_task=options, for_every=options, code=in_code)
def test_EMS_9_the_tasks_override_goes_before_that_of_every_task_and_both_before_the_code(
    for_task: dict[str, Any], for_every: dict[str, Any], code: dict[str, Any]
) -> None:
    plugin = plugin_of(_app(**code))
    plugin.override({"poison_max_failures": 77})
    raw = {"shop.convert": json.dumps(for_task), "*": json.dumps(for_every)}
    assert plugin.apply_overrides(1, {name: text for name, text in raw.items() if text != "{}"})
    set_up = {
        "max_crashes": 2,
        "max_failures": 77,
        "max_payload_bytes": None,
        "block_fingerprint_after": None,
    }
    for name in OVERRIDABLE:
        (first, *_) = [layer[name] for layer in (for_task, for_every, code, set_up) if name in layer]
        assert getattr(_policy(plugin), name) == first
        (other, *_) = [layer[name] for layer in (for_every, set_up) if name in layer]
        assert getattr(_policy(plugin, "shop.render"), name) == other


@settings(max_examples=100)
@given(for_task=options, for_queue=options, for_every=options, code=in_code, queues=options)
def test_WAS_3_what_holds_for_a_queue_goes_behind_the_task_and_before_everything(
    for_task: dict[str, Any],
    for_queue: dict[str, Any],
    for_every: dict[str, Any],
    code: dict[str, Any],
    queues: dict[str, Any],
) -> None:
    plugin = plugin_of(_app(**code))
    of_queues = {"slow": queues, "other": {"max_crashes": 99}}
    plugin.override({"poison_max_failures": 77, "poison_queues": of_queues})
    raw = {"shop.convert": for_task, "queue:slow": for_queue, "*": for_every}
    assert plugin.apply_overrides(1, {name: json.dumps(layer) for name, layer in raw.items() if layer})
    policy, set_up = _policy(plugin), {name: getattr(Policy(max_failures=77), name) for name in OVERRIDABLE}
    for name in OVERRIDABLE:
        in_slow = (for_task, for_queue, for_every, code, queues, set_up)
        elsewhere = (for_task, for_every, code, set_up)
        for queue, layers in (("slow", in_slow), ("celery", elsewhere), ("", elsewhere)):
            (first, *_) = [layer[name] for layer in layers if name in layer]
            assert getattr(policy.at(queue), name) == first, queue
    (most, *_) = [
        layer["max_crashes"] for layer in (for_task, for_every, code) if "max_crashes" in layer
    ] or [99]
    assert policy.at("other").max_crashes == most


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
entries = (
    st.binary()
    | st.builds(json.dumps, anything)
    | st.builds(json.dumps, st.dictionaries(st.sampled_from([*OVERRIDABLE, "fingerprint", "x"]), anything))
)


@settings(max_examples=30)
@given(raw=st.dictionaries(task_names | st.text(), entries))
def test_EMS_9_whatever_is_in_redis_the_policies_stay_possible(raw: dict[str, str | bytes]) -> None:
    overrides, complaints = Overrides.read(7, raw)
    for usable in overrides.by_task.values():
        check_options(usable, "here", OVERRIDABLE)
    policy = Policy.of(object(), Settings(), overrides.of("shop.convert"))
    assert policy.max_crashes >= 1 and policy.max_failures >= 1
    assert policy.max_payload_bytes is None or policy.max_payload_bytes >= 1
    assert len(complaints) >= len(raw) - len(overrides.by_task)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff",
        b"{",
        b"[]",
        b"null",
        b"[" * 100_000,
        b'{"max_crashes": ' + b"9" * 5000 + b"}",
        b'{"max_crash": 3}',
        b'{"fingerprint": "len"}',
        b'{"max_crashes": 0}',
        b'{"max_crashes": null}',
        b'{"max_crashes": true}',
    ],
)
def test_EMS_9_one_unusable_option_costs_no_other_and_is_told_once(
    garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    plugin = plugin_of(_app(max_crashes=4))
    with caplog.at_level(logging.WARNING, "celery_poison"):
        assert plugin.apply_overrides(1, {"shop.convert": garbage, "*": b'{"max_failures": 9, "new": 1}'})
        assert not plugin.apply_overrides(1, {"shop.convert": garbage})
    assert (_policy(plugin).max_crashes, _policy(plugin).max_failures) == (4, 9)
    (first, second) = [record.getMessage() for record in caplog.records]
    assert "policy of shop.convert in Redis" in first
    assert "policy of * in Redis, new is ignored: unknown option new" in second


def test_EMS_9_only_the_newest_version_wins(caplog: pytest.LogCaptureFixture) -> None:
    plugin = plugin_of(_app())
    assert plugin.apply_overrides(5, {"*": b'{"max_crashes": 5}'})
    with caplog.at_level(logging.WARNING, "celery_poison"):
        for _ in range(2):
            assert not plugin.apply_overrides(4, {"*": b'{"max_crashes": 4}'})
    assert not plugin.apply_overrides(5, {"*": b'{"max_crashes": 55}'})
    assert _policy(plugin).max_crashes == 5
    assert plugin.apply_overrides(6, {})
    assert _policy(plugin).max_crashes == 2
    (told,) = [record.getMessage() for record in caplog.records]
    assert "its version is 4, 5 is in force" in told


def test_a_wrong_override_is_refused_with_name_value_and_cure() -> None:
    with pytest.raises(
        ConfigurationError, match=r"policy of t: unknown option max_crash: did you mean max_cr"
    ):
        check_options({"max_crash": 3}, "policy of t", OVERRIDABLE)
    with pytest.raises(
        ConfigurationError, match=r"policy of t: max_failures=0 is impossible: use a whole num"
    ):
        check_options({"max_failures": 0}, "policy of t", OVERRIDABLE)
    with pytest.raises(ConfigurationError, match="unknown option fingerprint"):
        check_options({"fingerprint": len}, "policy of t", OVERRIDABLE)


def test_what_can_be_overridden_is_every_option_that_a_pool_process_need_not_hear_of() -> None:
    failures = {"keep_failures", "ignore", "convict_at_once"}
    effects = {"idempotency_key", "idempotency_window", "transactional_publish", "outbox"}
    destinations = {"exception_destination", "blocked_retry_timeout"}  # by code only, as yet
    by_code = (
        {"fingerprint", "outbox", "rerun", "tell"}
        | failures
        | effects
        | destinations
        | {kind.value for kind in ReportKind}
    )
    assert set(Policy.option_names()) - set(OVERRIDABLE) == by_code
    assert own_options(_app(max_crashes=3).tasks["shop.convert"]) == {"max_crashes": 3}
