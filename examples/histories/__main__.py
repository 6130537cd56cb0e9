"""Command line of the generator."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from examples.histories.world import World
from examples.histories.write import write_lake


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a history whose truth is known, as a Parquet lake.")
    parser.add_argument("target", type=Path, help="a directory that does not exist yet")
    parser.add_argument("--attempts", type=int, default=5_000_000)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--days", type=int, default=30, help="four or more: a deploy every third")
    parser.add_argument("--troubles", type=float, help="attempts in trouble for each healthy one, as 0.01")
    given = parser.parse_args()
    if given.target.exists():
        parser.error(f"{given.target} exists already, and nothing of it shall be overwritten")
    began = time.monotonic()
    try:
        world = World(given.attempts, given.seed, given.days, troubles=given.troubles)
    except ValueError as error:
        parser.error(str(error))
    total = write_lake(world, given.target, progress=print)
    print(f"{total:,} entries in {time.monotonic() - began:.1f} s: {given.target}")


if __name__ == "__main__":
    main()
