"""The scripts of an extension: the core has no part in them, and they touch little of the core."""

from __future__ import annotations

from celery_poison.ledger import scripts
from tests.ledger.test_scripts import ROOMS

#: Keys of the core that scripts of an extension read or write.
ALLOWED = {
    "by_value": {"journal"},
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
    assert found == {name: ALLOWED[name] | OWN[name] for name in ALLOWED}


def test_no_script_of_the_core_touches_a_key_of_an_extension() -> None:
    keys = {key for name in scripts.names() for key in scripts.script(name).keys}
    assert keys.isdisjoint({key for own in OWN.values() for key in own})
