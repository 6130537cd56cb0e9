"""The scripts of an extension: the core has no part in them, and they touch little of the core."""

from __future__ import annotations

import re
from importlib import resources

from celery_poison.ledger import scripts
from tests.ledger.test_scripts import ROOMS

#: Keys of the core that scripts of an extension read or write.
ALLOWED: dict[str, set[str]] = {
    "by_value": {"journal"},
    "cost": set(),
    "deploy_guard": {"journal", "paused"},  # `paused` belongs to holds
    "holds": {"journal"},
    "notify": {"monitor_fence", "counts"},
    "once": {"running", "done"},
    "outbox": {
        # With an end the core's own scripts send what is tied to it, and store as these do.
        *("tied", "tied_lately", "outbox_seq", "outbox_due", "outbox_wake"),
        *("running", "done", "buried", "parked", "journal"),
    },
    "proposals": {"blocks", "policy", "journal"},
    "telling": {"message"},
}
#: Keys of an extension.
OWN: dict[str, set[str]] = {
    "by_value": {"value_holds", "value_looks"},
    "cost": {"cost"},
    "deploy_guard": {"first_runs"},
    "holds": {"paused"},
    "notify": {"notified"},
    "once": {"effect"},
    "outbox": {
        *("lane", "outbox_lanes", "outbox_blocked", "outbox_failed"),
        *("outbox_mover", "outbox_moved"),
    },
    "proposals": {"published"},
    "telling": set(),
}


def test_scripts_of_an_extension_touch_their_own_keys_and_few_of_the_core() -> None:
    found: dict[str, set[str]] = {}
    for room in ROOMS:
        name = room.rpartition(".")[2]
        found[name] = {key for own in scripts.names(room) for key in scripts.script(f"{room}:{own}").keys}
        found[name] |= {key for text in _at_hooks(room) for key in _keys_in(text)}
    assert found == {name: ALLOWED[name] | OWN[name] for name in ALLOWED}


def _keys_in(text: str) -> list[str]:
    return re.findall(r"^-- KEYS\[\d+\] (\w+)", text, re.MULTILINE)


def _at_hooks(room: str) -> list[str]:
    """Return what a room does within scripts of the core."""
    files = resources.files(room).joinpath("lua").iterdir()
    return [file.read_text(encoding="utf-8") for file in files if file.name.startswith("_at_")]


def test_no_script_of_the_core_touches_a_key_of_an_extension_but_at_its_hooks() -> None:
    keys = {key for name in scripts.names() for key in _keys_in(scripts._read(name))}
    assert keys.isdisjoint({key for own in OWN.values() for key in own})
