"""An empty environment gets with the plugin whatever the brokers' transports import."""

from __future__ import annotations

import ast
import re
import sys
from importlib.metadata import requires
from pathlib import Path
from types import ModuleType

import pytest
from kombu.transport import pyamqp, redis


def _required(distribution: str) -> set[str]:
    """Names of what it asks for without any extra."""
    asked = [line for line in requires(distribution) or () if "extra ==" not in line]
    return {re.split(r"[^\w-]", line)[0].lower().replace("_", "-") for line in asked}


def _imported(module: ModuleType) -> set[str]:
    """The packages that a module imports at its top, the standard library left out."""
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    names = [alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom) and not node.level]
    return {name.partition(".")[0] for name in names} - sys.stdlib_module_names


@pytest.mark.parametrize("transport", [pyamqp, redis])
def test_whatever_a_transport_imports_is_asked_for_without_an_extra(transport: ModuleType) -> None:
    ours = _required("celery-poison")
    known = ours.union(*map(_required, ours & {"celery", "kombu"}))
    assert _imported(transport) <= known, "pip install celery-poison alone would not do"
