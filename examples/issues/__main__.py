"""Play scripts, ``python -m examples.issues celery_9082``, or print the tables of docs/issues.md."""

from __future__ import annotations

import argparse
import signal
import sys

from examples.issues.stage import Stage
from examples.issues.table import NAMES, expected, table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.issues", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--table", action="store_true", help="print them")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--plain", action="store_true", help="only without the plugin")
    only.add_argument("--guarded", action="store_true", help="only with the plugin")
    given = parser.parse_args()
    # As Ctrl-C does, it unwinds: servers and workers are stopped.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if unknown := set(given.names) - set(NAMES):
        parser.error(f"no such script: {', '.join(unknown)}")
    if given.table:
        print("\n\n".join(map(table, ("solved", "fixed", "open"))))
    modes = [guarded for guarded in (False, True) if not (given.plain if guarded else given.guarded)]
    outcomes = [_played(name, guarded) for name in given.names for guarded in modes]
    sys.exit(0 if all(outcomes) else 1)


def _played(name: str, guarded: bool) -> bool:
    """Play one, and say whether it came out as declared; else the logs tell why."""
    with Stage(name, guarded=guarded) as stage:
        outcome = stage.play()
        print(f"{name} {'guarded' if guarded else 'plain'}: {outcome}", flush=True)
        as_declared = outcome == expected(name, guarded=guarded)
        if not as_declared:
            print(f"{stage.logs()}\ndeclared: {expected(name, guarded=guarded)}", file=sys.stderr)
    return as_declared


if __name__ == "__main__":
    main()
