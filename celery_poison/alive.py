"""``python -m celery_poison.alive``: the liveness probe ``celery poison alive``, without an app (NEW-25).

It imports neither Celery nor the app, and asks no server: it reads a file of the worker.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

from celery_poison.basics.pulse import Pulse, beyond_help, condemn, home, pulses

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

USAGE = """Usage: python -m celery_poison.alive [--strict] [--json] [NODE]

Exit status 1 if a worker of this user on this host is beyond help, so that only a
restart is the cure, else 0. NODE is a worker's name, such as worker1@host.
  --strict  1, too, if there is no such worker.
  --json    Print JSON, and nothing else, on stdout.
"""


def look(node: str = "") -> tuple[list[Pulse], dict[str, str]]:
    """Return the workers that are meant, and why those are beyond help that are: node -> reason.

    Each of these finds a note, so that its end is no crash.
    """
    now = time.monotonic()
    seen = [pulse for pulse in pulses() if not node or pulse.node == node]
    reasons = {}
    for pulse in seen:
        if why := beyond_help(pulse, now):
            reasons[pulse.node] = why
            condemn(pulse, why)
    return seen, reasons


def nobody(node: str) -> str:
    """Return why nothing is known of a worker, with the cure."""
    whose = f"worker {node}" if node else "worker"
    where = home() or f"celery_poison-{os.geteuid()} in TMPDIR"
    return (
        f"no {whose} of user {os.geteuid()} has a pulse in {where}: it has not begun, has ended, or guards"
        " nothing; cure: run the probe as the worker's user, with its TMPDIR"
    )


def answer(
    seen: Sequence[Pulse], reasons: dict[str, str], node: str, *, strict: bool
) -> tuple[int, dict[str, Any]]:
    """Return the exit status, and the answer as JSON has it."""
    unknown = [] if seen else [nobody(node)]
    told = [f"{name}: {why}; cure: restart it" for name, why in reasons.items()]
    is_alive = not reasons and not (strict and unknown)
    workers = sorted(pulse.node for pulse in seen)
    return int(not is_alive), {"alive": is_alive, "workers": workers, "reasons": [*told, *unknown]}


def line(answered: dict[str, Any]) -> str:
    """Return the answer in words."""
    names: list[str] = answered["workers"]
    if not answered["alive"]:
        return "not alive: " + "; ".join(answered["reasons"])
    if not names:
        return f"unknown: {answered['reasons'][0]}"
    whose = (
        " (of this user on this host, of any app; a dead worker is not among them)" if len(names) > 1 else ""
    )
    return f"alive: {', '.join(names)}{whose}"


def main(words: Sequence[str]) -> int:
    """Answer a command line; return its exit status."""
    nodes = [word for word in words if not word.startswith("-")]
    options = {word for word in words if word.startswith("-")}
    if options & {"-h", "--help"}:
        sys.stdout.write(USAGE)
        return 0
    if len(nodes) > 1 or options - {"--strict", "--json"}:
        sys.stderr.write(USAGE)
        return 2
    node = "".join(nodes)
    status, answered = answer(*look(node), node, strict="--strict" in options)
    if "--json" in options:
        import json

        sys.stdout.write(json.dumps(answered) + "\n")
        return status
    is_well = answered["alive"] and answered["workers"]
    text = "".join(char if char.isprintable() else "?" for char in line(answered))
    (sys.stdout if is_well else sys.stderr).write(text + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
