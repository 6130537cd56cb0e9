"""The remote command by which a person's decision reaches Flower: only a live worker may send its events.

An event sent in the name of any other host would make a worker appear in Flower that does not exist.
"""

from __future__ import annotations

from typing import Any

from celery.worker.control import control_command

from celery_poison.plugin import plugin_of


@control_command(args=[("verb", str), ("id", str), ("reason", str)], signature="<verb> <id> <reason>")
def poison_announce(state: Any, verb: str, id: str, reason: str = "", **_: Any) -> dict[str, str]:
    """Tell Flower that a message was released or failed; decides nothing."""
    announce = plugin_of(state.app).runtime.announce
    if verb == "release":
        announce.released(id)
    elif verb == "fail":
        announce.failed(id, reason)
    else:
        return {"error": f"nothing is announced for {verb!r}"}
    return {"ok": verb}
