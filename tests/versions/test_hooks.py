"""The table of hooks fits what is installed, says what does not fit, and nothing private is used beside."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from kombu.transport import pyamqp, redis

import celery_poison
from celery_poison import PoisonTask, guard, guarded
from celery_poison.broker.transport import guarded_connection
from celery_poison.errors import ConfigurationError
from celery_poison.upstream import hooks
from celery_poison.upstream.hooks import HOOKS, Area, Misfit
from celery_poison.worker import bootsteps

PACKAGE = Path(celery_poison.__file__).parent

#: Private names that others have made public: of the standard library, redis-py, gevent and eventlet.
OTHERS = frozenset(
    {
        "_asdict",
        "_clear",
        "_current_frames",
        "_exit",
        "_fields",
        "_getframe",
        "_parser",
        "_replace",
        "_run_exitfuncs",
        "_sock",
        "_threadlocal",
        "_threadpool",
        "_threads",
    }
)


def test_every_hook_fits_what_is_installed() -> None:
    assert not hooks.misfits(), "\n".join(map(str, hooks.misfits()))
    assert not hooks.untested_versions(), hooks.installed()


def _private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _defined(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield from [node.attr] if ast.unparse(node.value) in ("self", "cls") else []


def test_no_private_name_of_others_is_used_that_is_not_in_the_table() -> None:
    trees = [ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py") if "pipeline" not in path.parts]
    ours = {name for tree in trees for name in _defined(tree)}
    used = {node.attr for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    hooks_of = [hook for part in HOOKS.values() for names in part.values() for hook in names.split()]
    table = {hook.partition("(")[0] for hook in hooks_of}
    # Ours, on an app; and what nothing depends on: tasks are found when their app is finalized, too.
    excused = OTHERS | {"_poison", "_task_from_fun"}
    assert {name for name in used if _private(name)} - ours - excused <= table


class Changed:
    """A class of theirs, one release later."""

    def kept(self, pool: Any, *, more: int = 0) -> None:
        self._made = pool

    def renamed(self, pond: Any) -> None: ...

    def demanding(self, pool: Any, lake: Any) -> None: ...


@pytest.mark.parametrize(
    ("hook", "said"),
    [
        ("kept(pool)", ""),
        ("kept(pool,more)", ""),
        ("_made", ""),
        ("_gone", "has no _gone"),
        ("gone()", "has no gone"),
        ("renamed(pool)", "renamed does not know pool"),
        ("demanding(pool)", "demanding wants lake too"),
    ],
)
def test_a_hook_that_does_not_fit_is_told_by_its_name(
    monkeypatch: pytest.MonkeyPatch, hook: str, said: str
) -> None:
    table = {Area.REDIS: {f"{__name__}:Changed": hook, "kombu.nowhere:Channel": "_any"}}
    monkeypatch.setattr(hooks, "HOOKS", table)
    *found, gone = hooks.misfits()
    assert [misfit.what.rpartition("Changed ")[2] for misfit in found] == ([said] if said else [])
    assert gone.what == f"kombu {hooks.installed()['kombu']} has no kombu.nowhere:Channel"
    assert "visibility timeout" in str(gone) and "install versions" in str(gone)


def _missing(monkeypatch: pytest.MonkeyPatch, part: Area) -> Misfit:
    misfit = Misfit(part, "kombu 9.9 has no Thing")
    monkeypatch.setattr(hooks, "misfits_so_far", lambda: (misfit,))
    return misfit


def test_a_worker_that_cannot_guard_does_not_start_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    misfit = _missing(monkeypatch, Area.GUARD)
    with pytest.raises(ConfigurationError, match="has no Thing"):
        bootsteps._check_hooks()
    assert "does not start" in str(misfit)


def test_a_worker_that_misses_anything_else_says_so_and_starts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    misfit = _missing(monkeypatch, Area.REDIS)
    bootsteps._check_hooks()
    assert str(misfit) in caplog.text


@pytest.mark.parametrize(("part", "kind"), [(Area.REDIS, redis.Transport), (Area.RABBITMQ, pyamqp.Transport)])
def test_where_the_hooks_of_a_transport_do_not_fit_it_is_left_as_it_is(
    monkeypatch: pytest.MonkeyPatch, part: Area, kind: Any
) -> None:
    assert guarded_connection(lambda: "0" * 16).guarded(kind) is not kind
    _missing(monkeypatch, part)
    assert guarded_connection(lambda: "0" * 16).guarded(kind) is kind


def test_where_the_hooks_of_the_pool_do_not_fit_it_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    from billiard.pool import Pool

    from celery_poison.worker import pool_processes

    inner = Pool.__new__(Pool)
    inner._pool = []
    _missing(monkeypatch, Area.EXITS)
    pool_processes.follow(SimpleNamespace(_pool=inner), print)
    assert "_create_worker_process" not in vars(inner)


def test_where_an_app_makes_its_tasks_otherwise_they_are_guarded_when_it_is_finalized() -> None:
    class Renamed(Celery):
        """It does not let us see how it makes a task."""

        def __getattribute__(self, name: str) -> Any:
            if name == "_task_from_fun" and sys._getframe(1).f_globals["__name__"] == guard.__name__:
                raise AttributeError(name)
            return super().__getattribute__(name)

    app = Renamed("renamed", broker="memory://", set_as_current=False)

    @app.task(name="renamed.task", shared=False)
    @guarded
    def task() -> None: ...

    app.finalize()
    assert isinstance(app.tasks["renamed.task"], PoisonTask)
