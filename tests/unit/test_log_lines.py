"""Who reads the log of a worker, among lines of Celery and of others, finds ours by their beginning."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from celery_poison.ledger import notices
from tests.docs.pages import PACKAGE

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
