"""Who reads the log of a worker, among lines of Celery and of others, finds ours by their beginning."""

from __future__ import annotations

import ast
import logging
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from types import SimpleNamespace

import pytest

from celery_poison.basics.logs import name_once
from celery_poison.ledger import notices
from celery_poison.model import MessageRecord
from celery_poison.states import State
from celery_poison.worker.announce import Announcer
from tests.docs.pages import PACKAGE

QUARANTINED = MessageRecord(
    mid="m-1",
    id="id-1",
    state=State.NDLV,
    task="shop.charge%s",
    queue="pdf",
    cause="signal:9",
    reason="killed its process by SIGKILL, 2 times",
)
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
#: Their first line of output is a person's, not a log's.
OTHERS = {"demo", "testing"}


def _sentences(tree: ast.AST) -> Iterator[tuple[int, ast.expr]]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="logger"), attr="log"), args=[_, text, *_]):
                yield node.lineno, text
            case ast.Call(func=ast.Attribute(value=ast.Name(id="logger"), attr=level), args=[text, *_]):
                assert level in LEVELS
                yield node.lineno, text


def test_every_log_line_of_the_package_begins_with_its_name() -> None:
    found, strange = 0, []
    for path in PACKAGE.rglob("*.py"):
        if path.relative_to(PACKAGE).parts[0] in OTHERS:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        texts = {
            target.id: node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for line, sentence in _sentences(tree):
            found += 1
            if isinstance(sentence, ast.Name):
                sentence = texts.get(sentence.id) or ast.Constant(getattr(notices, sentence.id))
            if isinstance(sentence, ast.JoinedStr):
                sentence = sentence.values[0]
            text = sentence.value if isinstance(sentence, ast.Constant) else ""
            if not str(text).startswith("celery_poison"):
                strange.append(f"{path}:{line}")
    assert found > 30 and strange == []


def test_convictions_of_one_task_have_one_template_and_those_of_two_have_two(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Sentry and others group lines by that, and tell people of new groups only."""
    announcer = Announcer(SimpleNamespace(consumer=None))  # type: ignore[arg-type]
    again = replace(QUARANTINED, mid="m-2", id="id-2", reason="killed its process by SIGKILL, 3 times")
    for record in (QUARANTINED, again, replace(again, task="shop.render"), replace(again, cause="signal:11")):
        announcer.quarantined(record)
    first, second, other, cause = (record.msg for record in caplog.records)
    assert first == second and len({first, other, cause}) == 3
    line = caplog.records[0]
    told = "is in quarantine now: it killed its process by SIGKILL, 2 times;"
    beginning = f"Task shop.charge%s[id-1] of queue pdf {told} celery -A "
    # The format of these tests names the logger; another may not.
    assert line.getMessage().removeprefix("celery_poison: ").startswith(beginning)
    about = {name: getattr(line, name) for name in ("task", "task_id", "queue", "cause")}
    assert about == {"task": "shop.charge%s", "task_id": "id-1", "queue": "pdf", "cause": "signal:9"}


@pytest.mark.parametrize(
    ("formats", "seen"),
    [
        (["[%(asctime)s: %(levelname)s] %(message)s"], "celery_poison: %s is slow"),
        (["logger=%(name)s msg=%(message)s"], "%s is slow"),
        (['{"logger": "%(name)s"}', "%(message)s"], "celery_poison: %s is slow"),
        ([None], "celery_poison: %s is slow"),
        ([], "celery_poison: %s is slow"),
    ],
)
def test_a_line_begins_with_our_name_unless_its_format_names_the_logger(
    formats: list[str | None], seen: str
) -> None:
    log = logging.Logger("celery_poison")
    name_once(log)
    log.addHandler(logging.NullHandler())  # kombu gives each logger one
    handlers = [logging.StreamHandler(StringIO()) for _ in formats]
    for handler, text in zip(handlers, formats, strict=True):
        handler.setFormatter(logging.Formatter(text) if text else None)
        log.addHandler(handler)
    record = log.makeRecord(log.name, logging.WARNING, "f", 1, "celery_poison: %s is slow", ("it",), None)
    log.handle(record)
    assert record.msg == seen
    other = log.makeRecord(log.name, logging.WARNING, "f", 1, "celery_poison 0.1: begins", (), None)
    log.handle(other)
    assert other.msg == "celery_poison 0.1: begins"
