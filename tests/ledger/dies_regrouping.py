"""Reads groups, and dies where it puts them right: DIES_AT="before 3": before its third write; or "after 3".

Without that it prints how many writes it took.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from celery_poison.desk.finder import Finder
from celery_poison.ledger import Keys, Ledger
from celery_poison.ledger import decisions as transitions
from celery_poison.ledger.connection import open_redis

#: Few enough that there are many steps.
transitions.REGROUPED = 10

writes = 0
_when, _, _number = os.environ.get("DIES_AT", "").partition(" ")


def _die_if(when: str) -> None:
    if (when, str(writes)) == (_when, _number):
        os.kill(os.getpid(), signal.SIGKILL)


def counting(part: object, name: str) -> None:
    """Count what a method of the ledger writes, and die where that was meant."""
    method = getattr(part, name)

    def run(*words: Any, **more: Any) -> None:
        global writes
        writes += 1
        _die_if("before")
        method(*words, **more)
        _die_if("after")

    setattr(part, name, run)


def main() -> None:
    ledger = Ledger(open_redis(sys.argv[1]), Keys("groups"))
    finder = Finder(ledger)
    counting(finder.transitions, "note_repair")
    counting(ledger.scripts, "call")
    finder.by_queue()
    sys.stdout.write(f"{writes}\n")


if __name__ == "__main__":
    main()
