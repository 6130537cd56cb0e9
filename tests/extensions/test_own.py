"""An extension brings what is its own: the core finds it by its name, and needs no line for it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from celery_poison import extensions
from celery_poison.basics import rooms
from celery_poison.causes import Evidence
from celery_poison.desk.evidence import sentence_of
from celery_poison.errors import ConfigurationError
from celery_poison.ledger import Keys
from celery_poison.policy import Policy, check_options
from celery_poison.settings import Settings

_SETTINGS = """
from __future__ import annotations
from dataclasses import dataclass
from typing import ClassVar
from celery_poison.settings import Section, whole

@dataclass(frozen=True, slots=True, kw_only=True)
class SETTINGS(Section):
    task_options: ClassVar[tuple[str, ...]] = ("naps",)
    naps: int = whole(0, 0, "Naps that a task takes.", "naps")
"""
_EVIDENCE = """
from __future__ import annotations
from dataclasses import dataclass

@dataclass(frozen=True, slots=True, kw_only=True)
class FIELDS:
    slept_s: float | None = None

def sentence_of(evidence):
    slept = evidence.of(FIELDS).slept_s
    return f"It had slept {slept:g} s." if slept else ""
"""


@pytest.fixture
def naps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A room of another place, with a setting that is an option of tasks, a key, and a field of evidence."""
    room = tmp_path / "naps"
    room.mkdir()
    keys = 'KEYS = {"dreams": "", "dream": "MID"}'
    modules = {"__init__": keys, "settings": _SETTINGS, "evidence": _EVIDENCE}
    for name, text in modules.items():
        (room / f"{name}.py").write_text(text)
    monkeypatch.setattr(extensions, "__path__", [*extensions.__path__, str(tmp_path)])
    monkeypatch.setattr(extensions, "ORDER", (*extensions.ORDER, "naps"))
    yield f"{rooms.EXTENSIONS}.naps"
    for module in [each for each in sys.modules if each.startswith(f"{rooms.EXTENSIONS}.naps")]:
        del sys.modules[module]
    rooms._modules.cache_clear()


def test_an_extension_brings_its_settings_options_keys_and_evidence(naps: str) -> None:
    settings = Settings.from_conf({"poison_naps": 3})
    own = sys.modules[f"{naps}.settings"].SETTINGS
    task = SimpleNamespace(name="shop.charge", naps=5)
    assert settings.of(own).naps == 3 and Policy.of(object(), settings).section(own).naps == 3
    assert Policy.of(task, settings).section(own).naps == 5
    with pytest.raises(ConfigurationError, match="naps=-1 is impossible"):
        check_options({"naps": -1}, "guarded()")
    keys = Keys("ns")
    assert keys.fixed["dreams"] == "{ns}:dreams" and keys.of("dream", "m1") == "{ns}:dream:m1"
    assert "dream" not in keys.fixed, "a script is told which of several"
    evidence: Any = Evidence.decode('{"signal":9,"slept_s":2.5,"naps":1}')
    assert evidence.encode() == '{"signal":9,"slept_s":2.5}'
    assert sentence_of(evidence).endswith("It had slept 2.5 s.")


def test_what_is_not_an_extensions_own_is_not_taken_for_it() -> None:
    with pytest.raises(ConfigurationError, match="poison_naps"):
        Settings.from_conf({"poison_naps": 3})
    assert Evidence.decode('{"slept_s":2.5}') == Evidence()
    with pytest.raises(KeyError):
        Keys("ns").of("dreams")
