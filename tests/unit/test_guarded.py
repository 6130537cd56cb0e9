"""The decorator in every order, on every kind of task; nothing is evaluated too early."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, get_overloads

import pytest
from celery import Celery, shared_task
from celery.local import PromiseProxy

from celery_poison import PoisonTask, Quarantine, guarded, install
from celery_poison.cells.trial import PoolFacts
from celery_poison.errors import ConfigurationError
from celery_poison.plugin import plugin_of
from celery_poison.policy import Policy
from celery_poison.upstream.acks import give_back_acks
from celery_poison.upstream.requests import acks_end
from celery_poison.worker.announce import greet


@pytest.fixture
def app() -> Celery:
    return Celery("unit", broker="redis://localhost:1", backend="redis://localhost:1", set_as_current=False)


def _is_guarded(task: Any, **options: Any) -> bool:
    assert isinstance(task, PoisonTask)
    assert task.acks_late is True and task.reject_on_worker_lost is True
    for name, value in options.items():
        assert getattr(task, name) == value
    return True


def test_guarded_above_the_task_decorator(app: Celery) -> None:
    @guarded
    @app.task(shared=False)
    def charge(order: int) -> int:
        return order

    assert _is_guarded(charge) and charge.run(3) == 3


def test_guarded_below_the_task_decorator(app: Celery) -> None:
    @app.task(shared=False)
    @guarded
    def charge(order: int) -> int:
        return order

    assert _is_guarded(charge) and charge.run(3) == 3


@pytest.mark.parametrize("above", [True, False])
def test_guarded_with_options_in_either_order(app: Celery, above: bool) -> None:
    def charge(order: int) -> int:
        return order

    wrap = guarded(max_crashes=3, max_failures=4)
    task = wrap(app.task(shared=False)(charge)) if above else app.task(shared=False)(wrap(charge))
    assert _is_guarded(task, max_crashes=3, max_failures=4)


def test_guarded_on_an_app_that_is_finalized_already(app: Celery) -> None:
    app.finalize()

    @app.task(shared=False)
    @guarded(max_crashes=3)
    def below() -> None: ...

    @guarded(max_crashes=4)
    @app.task(shared=False)
    def above() -> None: ...

    assert _is_guarded(below, max_crashes=3) and _is_guarded(above, max_crashes=4)


def test_a_lazy_task_is_not_evaluated_by_guarding_it(app: Celery) -> None:
    @guarded
    @app.task(shared=False)
    def lazy() -> None: ...

    assert type(lazy) is PromiseProxy and not lazy.__evaluated__()
    app.finalize()
    assert _is_guarded(app.tasks[lazy.name])


@pytest.mark.parametrize("above", [True, False])
def test_a_shared_task_is_guarded_in_every_app_and_evaluated_in_none(above: bool) -> None:
    def shared(x: int) -> int:
        return x

    shared.__name__ = f"shared_{above}"
    wrap = guarded(max_crashes=6)
    _ = wrap(shared_task(shared)) if above else shared_task(wrap(shared))
    for _number in range(2):
        other = Celery("other", broker="redis://localhost:1", set_as_current=False)
        task = other.tasks[f"{__name__}.shared_{above}"]
        assert _is_guarded(task, max_crashes=6) and task.app is other


def test_the_base_class_guards_by_itself(app: Celery) -> None:
    @app.task(base=PoisonTask, max_crashes=9, shared=False)
    def render() -> None: ...

    assert _is_guarded(render, max_crashes=9)


def test_what_calls_tasks_in_its_own_process_is_guarded_and_keeps_its_acknowledgement(app: Celery) -> None:
    install(app)
    for name in ("celery.map", "celery.starmap", "celery.chunks"):
        task = app.tasks[name]
        assert isinstance(task, PoisonTask)
        assert task.acks_late is app.conf.task_acks_late is False
    assert not isinstance(app.tasks["celery.chord_unlock"], PoisonTask)
    assert not [name for name in plugin_of(app).observed if name.startswith("celery.")]


def test_guarding_installs_the_plugin_on_the_tasks_app_and_on_no_other(app: Celery) -> None:
    other = Celery("other", broker="redis://localhost:1", set_as_current=False)

    @guarded
    @app.task(shared=False)
    def charge() -> None: ...

    app.finalize()
    other.finalize()
    assert plugin_of(app).guards(charge.name)
    assert charge.name in plugin_of(app).policies and charge.name not in other.tasks


def test_acks_late_false_beside_guarded_is_refused_in_either_order(app: Celery) -> None:
    with pytest.raises(ConfigurationError, match=r"task '\w+': .*acks_late=False contradicts"):

        @guarded
        @app.task(acks_late=False, shared=False)
        def above() -> None: ...

    with pytest.raises(ConfigurationError, match="acks_late=False contradicts"):

        @app.task(acks_late=False, shared=False)
        @guarded
        def below() -> None: ...

        app.finalize()


def test_acks_late_false_beside_the_base_class_is_refused(app: Celery) -> None:
    with pytest.raises(ConfigurationError, match="acks_late=False contradicts"):

        @app.task(base=PoisonTask, acks_late=False, shared=False)
        def below() -> None: ...

        app.finalize()


def test_unknown_and_impossible_options_are_refused_where_they_are_written(app: Celery) -> None:
    with pytest.raises(ConfigurationError, match="did you mean max_crashes"):
        guarded(max_crash=2)
    with pytest.raises(ConfigurationError, match="max_crashes=0"):
        guarded(max_crashes=0)
    with pytest.raises(ConfigurationError, match="derive the class"):

        @guarded
        class Charge: ...


def test_install_refuses_unknown_settings_and_may_be_called_twice(app: Celery) -> None:
    assert install(app) is install(app, poison_max_crashes=4)
    assert plugin_of(app).settings.max_crashes == 4
    with pytest.raises(ConfigurationError):
        install(app, poison_max_crashs=4)


def test_guard_all_guards_every_task_and_leaves_its_acknowledgement_alone(app: Celery) -> None:
    install(app, poison_guard_all=True)

    @app.task(shared=False)
    def early() -> None: ...

    @app.task(acks_late=True, shared=False)
    def late() -> None: ...

    app.finalize()
    assert plugin_of(app).policies[early.name][1] is False
    assert plugin_of(app).policies[late.name][1] is True
    assert not early.acks_late and not early.reject_on_worker_lost
    built_in = {name for name in plugin_of(app).policies if name.startswith("celery.")}
    assert built_in == {"celery.map", "celery.starmap", "celery.chunks"}


def test_guard_all_reaches_a_producer_whose_first_task_of_our_class_is_made_when_it_is_finalized() -> None:
    program = """
from celery import Celery
from celery_poison import PoisonTask
app = Celery("shop", broker="memory://")
app.conf.update(poison_guard_all=True, poison_redis_url="redis://localhost:1")
def convert(): pass
app.task(convert, name="shop.plain", shared=False)
app.task(convert, name="shop.ours", base=PoisonTask, shared=False)
assert all(isinstance(app.tasks[name], PoisonTask) for name in ("shop.ours", "shop.plain"))
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_NEW_30_guard_all_stamps_what_a_producer_publishes_that_never_finalizes_its_app() -> None:
    program = """
from celery import Celery
from celery_poison import install
app = Celery("shop", broker="memory://")
install(app, poison_guard_all=True, poison_redis_url="redis://localhost:1")
@app.task(name="shop.plain", shared=False)
def plain(): pass
plain.delay()
assert not app.finalized
with app.connection() as connection:
    assert connection.SimpleQueue("celery").get(timeout=5).headers["poison_mid"]
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_an_app_that_only_its_quarantine_knows_is_guarded_as_its_configuration_says(app: Celery) -> None:
    @app.task(shared=False)
    def early() -> None: ...

    app.finalize()
    app.conf.poison_guard_all = True
    assert not plugin_of(app).guards(early.name)
    Quarantine(app)
    assert plugin_of(app).guards(early.name)


def test_a_fingerprint_function_given_as_a_task_attribute_stays_a_plain_function(app: Celery) -> None:
    from celery_poison import Policy

    @app.task(base=PoisonTask, fingerprint=staticmethod(lambda order: order), shared=False)
    def charge(order: int) -> None: ...

    app.finalize()
    policy = Policy.of(app.tasks[charge.name], plugin_of(app).settings)
    assert policy.fingerprint is not None and policy.fingerprint(7) == 7


@pytest.mark.parametrize("how", ["direct", "eager"])
def test_a_task_that_runs_outside_a_worker_sees_a_neutral_history(app: Celery, how: str) -> None:
    @guarded
    @app.task(bind=True, shared=False)
    def look(self: Any) -> tuple[Any, ...]:
        return tuple(self.request.poison)[:6]

    seen = look() if how == "direct" else look.apply().get()
    assert seen == (1, 0, 0, False, False, False)


def test_a_memory_error_in_a_direct_call_stays_a_memory_error(app: Celery) -> None:
    @guarded
    @app.task(shared=False)
    def hungry() -> None:
        raise MemoryError

    with pytest.raises(MemoryError):
        hungry()


@pytest.mark.parametrize("configured", [False, True])
def test_NEW_8_observed_tasks_acknowledge_as_they_would_without_us(configured: bool, app: Celery) -> None:
    app.conf.update(task_acks_late=configured, task_reject_on_worker_lost=configured)

    @guarded
    @app.task(shared=False)
    def plain() -> None: ...

    @app.task(shared=False, acks_late=True)
    @guarded
    def late() -> None: ...

    @app.task(base=PoisonTask, shared=False)
    def derived() -> None: ...

    @guarded
    @app.task(base=PoisonTask, shared=False, acks_late=True)
    def both() -> None: ...

    expected = {plain: configured, late: True, derived: configured, both: True}
    for task in expected:
        bound = app.tasks[task.name]
        assert bound.acks_late is bound.reject_on_worker_lost is True
    give_back_acks(app)
    give_back_acks(app)
    for task, is_late in expected.items():
        bound = app.tasks[task.name]
        assert (bool(bound.acks_late), bool(bound.reject_on_worker_lost)) == (is_late, configured), task.name


def test_the_options_of_guarded_are_written_out_with_types_and_docs() -> None:
    _, with_options = get_overloads(guarded)
    options = [*inspect.signature(with_options).parameters]
    assert options == [*Policy.option_names(), "acks_on_timeout"]
    documented = inspect.getdoc(guarded) or ""
    assert [name for name in options if not re.search(rf"\b{name}\b.*:", documented)] == []


def test_a_type_checker_refuses_the_options_that_a_worker_refuses(tmp_path: Path) -> None:
    api = pytest.importorskip("mypy.api")
    shop = tmp_path / "shop.py"
    calls = ['guarded(max_crashes="two")', "guarded(max_crashs=2)", "guarded(max_crashes=2)"]
    shop.write_text("\n".join(["from celery_poison import guarded", *calls]))
    said, trouble, _ = api.run([str(shop), "--follow-imports=silent"])
    assert not trouble
    assert {int(line.split(":")[1]) for line in said.splitlines() if ": error:" in line} == {2, 3}, said


def test_a_hang_is_put_back_where_guarded_says_so_and_what_is_no_bool_is_refused(app: Celery) -> None:
    @guarded(acks_on_timeout=False)
    @app.task(shared=False, name="t.hangs", time_limit=1)
    def hangs() -> None: ...

    assert not acks_end(app.tasks["t.hangs"], timed_out=True) and acks_end(hangs, timed_out=False)
    with pytest.raises(ConfigurationError, match="acks_on_timeout is 'no': write True or False"):
        guarded(acks_on_timeout="no")  # type: ignore[call-overload]


@pytest.mark.parametrize("name", ["prefork", "gevent", "thread", "solo", "eventlet"])
def test_a_worker_warns_of_hangs_that_leave_no_trace_or_never_end_and_only_of_those(
    app: Celery, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    for task_name, limit, options in (
        ("silent", 1, {}),
        ("told", 1, {"acks_on_timeout": False}),
        ("free", None, {}),
    ):

        def task() -> None: ...

        guarded(**options)(app.task(task, shared=False, name=f"t.{task_name}", time_limit=limit))
    guarded(app.task(task, shared=False, name="celery_poison.told", time_limit=1))  # ours are no news
    pool = PoolFacts(name, 2, contained=name != "prefork", soft=None, hard=None)
    greet(app, pool)
    (warned,) = [line for line in caplog.messages if "a hang of" in line]
    if name in ("prefork", "gevent"):
        assert "a hang of t.silent leaves no trace" in warned and "guarded(acks_on_timeout=False)" in warned
    else:
        assert "a hang of t.silent, t.told is never ended, and keeps its slot" in warned
        assert f"the pool {name}" in warned and "acks_on_timeout" not in warned
    caplog.clear()
    greet(app, replace(pool, hard=3.0))
    assert any("t.free" in line for line in caplog.messages), "the worker's own --time-limit"
