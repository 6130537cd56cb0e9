"""A program that only publishes, and listens: `python -m tests.fleet.publisher`. It says all in JSON.

Publishes three tasks, and leaves when its standard input ends.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

from celery_poison import signals
from tests.apps.handlers import SIGNALS
from tests.fleet.apps import build


def say(what: str, **facts: Any) -> None:
    sys.stdout.write(json.dumps({"said": what, **facts}) + "\n")
    sys.stdout.flush()


def main() -> None:
    app = build(os.environ)
    for name, each in SIGNALS.items():

        def hear(signal: Any = None, sender: Any = None, name: str = name, **facts: Any) -> None:
            say(name, facts=facts)

        each.connect(hear, weak=False)
    with signals.listen(app):
        say("published", ids=[app.tasks["fleet.holds"].delay(n).id for n in range(3)])
        sys.stdin.read()
    say("left", threads=[thread.name for thread in threading.enumerate()])


if __name__ == "__main__":
    main()
