"""The hooks of extensions: which are bound, in which order, and what becomes of one that raises."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from celery import Celery

from celery_poison import extension, extensions
from celery_poison.basics.calling import gather
from celery_poison.basics.parts import Round
from celery_poison.errors import ConfigurationError
from celery_poison.extension import Extension, Extensions
from celery_poison.guard import install
from celery_poison.ledger import Ledger
from celery_poison.outbox import publishing_in
from celery_poison.worker import child
from tests.docs.pages import PACKAGE, ROOT, rows, section, text, words

#: Modules of the root that stand for one of an extension.
HANDED_ON = ("marks", "outbox")


def _host() -> Any:
    return install(Celery("extensions", set_as_current=False))


class First(Extension):
    def rounds(self, ledger: Ledger, announce: Callable[..., object]) -> Iterable[Round]:
        return [Round("first", 1.0, lambda fence: None)]


class Idle(Extension):
    """It fills no hook."""


class Fails(Extension):
    def rounds(self, ledger: Ledger, announce: Callable[..., object]) -> Iterable[Round]:
        yield Round("before", 1.0, lambda fence: None)
        raise RuntimeError("broken")


class Last(First):
    def rounds(self, ledger: Ledger, announce: Callable[..., object]) -> Iterable[Round]:
        return [Round("last", 1.0, lambda fence: None)]


def test_a_hook_is_bound_in_the_order_of_the_extensions_and_only_where_it_is_filled() -> None:
    host = _host()
    bound = Extensions([First(host), Idle(host), Last(host)])
    ledger: Any = None
    assert [each.name for hook in bound.rounds for each in hook(ledger, print)] == ["first", "last"]


def test_a_hook_that_no_extension_fills_is_an_empty_tuple() -> None:
    bound = Extensions([Idle(_host())])
    hooks = [name for name, hook in vars(Extension).items() if callable(hook) and not name.startswith("_")]
    assert hooks
    assert {name: getattr(bound, name) for name in hooks} == dict.fromkeys(hooks, ())


def test_what_a_hook_raises_is_complained_of_and_the_others_are_asked() -> None:
    host, complaints, ledger = _host(), list[Exception](), Any
    bound = Extensions([Fails(host), Last(host)])
    found = gather(bound.rounds, complaints.append, ledger, print)
    assert [each.name for each in found] == ["last"]
    assert [str(error) for error in complaints] == ["broken"]


def test_the_extensions_are_loaded_in_their_order_each_once_for_an_app() -> None:
    host = _host()
    assert host.extensions is host.extensions
    rooms = [type(each).__module__.split(".")[2] for each in host.extensions.all]
    assert rooms == [*extensions.ORDER]
    folder = PACKAGE / "extensions"
    assert {*rooms} == {path.parent.name for path in folder.glob("*/__init__.py")}


def test_an_installation_without_extensions_has_no_hook_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extension, "EXTENSIONS", "celery_poison.left_out")
    assert _host().extensions.all == ()


def test_TP1_9_without_the_outbox_a_task_that_ties_what_it_publishes_hears_so() -> None:
    host = _host()
    host.extensions = Extensions([Idle(host)])
    task, nothing = SimpleNamespace(app=host.app), SimpleNamespace()
    run: Any = child.RunningTask(cast(Any, nothing), cast(Any, nothing), b"")
    with pytest.raises(ConfigurationError, match="extension outbox"):
        run.tying(task)
    with pytest.raises(ConfigurationError, match="extension outbox"), publishing_in(object(), host.app):
        pass


def test_the_rule_of_imports_names_every_module_of_the_root() -> None:
    rules = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (rule,) = [each for each in rules if each["name"] == "The modules of the root know no extension"]
    modules = {f"celery_poison.{path.stem}" for path in PACKAGE.glob("*.py") if path.stem not in HANDED_ON}
    assert {*rule["source_modules"]} == modules - {"celery_poison.__init__"}


@pytest.mark.parametrize("name", HANDED_ON)
def test_a_public_module_of_an_extension_only_hands_on(name: str) -> None:
    text = (PACKAGE / f"{name}.py").read_text(encoding="utf-8")
    kinds = {type(node) for node in ast.parse(text).body}
    assert kinds <= {ast.Expr, ast.ImportFrom, ast.Assign} and "celery_poison.extensions" in text


def test_the_page_lists_the_rooms_in_their_order_and_the_hooks_that_each_fills() -> None:
    table = rows(section(text("life-of-a-message.md"), "Extensions"))
    hooks = [name for name, hook in vars(Extension).items() if callable(hook) and not name.startswith("_")]
    filled = {
        name: {hook for hook in hooks if getattr(type(each), hook) is not getattr(Extension, hook)}
        for name, each in zip(extensions.ORDER, _host().extensions.all, strict=True)
    }
    assert [words(row[0])[0] for row in table] == [*extensions.ORDER]
    assert {words(row[0])[0]: {*words(row[2])} for row in table} == filled
