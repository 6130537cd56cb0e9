"""How often the analysis accuses where nothing is to blame, and finds what is planted (NEW-22).

Of each kind of world some hundred histories are drawn without a culprit, and some with one; each is judged
as `celery poison pipeline blame` judges it, the queries by DuckDB. Seeded: the same numbers each time.

    python -m benchmarks.audit                       100 histories of each kind
    python -m benchmarks.audit --histories 5         a first look
    python -m benchmarks.audit --world outage --show   who was accused
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

from celery_poison.pipeline.blame import blame
from tests.pipeline import tallied, worlds

Accused = list[tuple[str, str, str]]


def accused(world: str, seed: int, culprit: worlds.Culprit | None = None) -> Accused:
    """Return what one history's analysis accuses: dimension, key, sentence."""
    rows = blame(tallied.table(worlds.history(world, seed, culprit=culprit)))
    found = [(row["dimension"], row["key"], row["says"]) for row in rows if row["standing"] != "unremarkable"]
    planted = culprit and (culprit.dimension, culprit.key)
    return [each for each in found if each[0] not in worlds.TRUE.get(world, ()) or each[:2] == planted]


def _empty(seed: int, world: str) -> Accused:
    return accused(world, seed)


def _planted(seed: int, world: str) -> tuple[bool, Accused]:
    """Whether what is planted was found, and what else was accused."""
    culprits = worlds.culprits(world)
    culprit = culprits[seed % len(culprits)]
    found = accused(world, seed, culprit)
    mine = [each for each in found if each[:2] == (culprit.dimension, culprit.key)]
    return bool(mine), [each for each in found if each not in mine]


def audit(world: str, histories: int, pool: ProcessPoolExecutor) -> dict[str, Any]:
    """Judge ``histories`` of one world without a culprit, and as many with one."""
    empty = list(pool.map(partial(_empty, world=world), range(histories)))
    planted = list(pool.map(partial(_planted, world=world), range(1000, 1000 + histories)))
    falsely = [each for found in empty for each in found]
    return {
        "world": world,
        "histories": histories,
        "with_false_accusation": sum(bool(found) for found in empty),
        "found": sum(hit for hit, _ in planted),
        "missed": [n + 1000 for n, (hit, _) in enumerate(planted) if not hit],
        "beside_the_planted": sum(bool(others) for _, others in planted),
        "falsely": Counter(dimension for dimension, _, _ in falsely),
        "sentences": falsely,
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--histories", type=int, default=100, help="of each kind (default: 100)")
    options.add_argument("--world", default="", help="only worlds with this in their name")
    options.add_argument("--processes", type=int, default=2)
    options.add_argument("--show", action="store_true", help="print the sentences of false accusations")
    options.add_argument("--json", action="store_true")
    chosen = options.parse_args()
    began, rows = time.monotonic(), []
    with ProcessPoolExecutor(chosen.processes) as pool:
        for world in worlds.WORLDS:
            if chosen.world in world:
                rows.append(audit(world, chosen.histories, pool))
                _print(rows[-1], show=chosen.show) if not chosen.json else None
    if chosen.json:
        print(json.dumps(rows, indent=1))
    else:
        print(f"{time.monotonic() - began:.0f} s")


def _print(row: dict[str, Any], *, show: bool) -> None:
    of = row["histories"]
    by = ", ".join(f"{name} {n}" for name, n in row["falsely"].most_common())
    print(
        f"{row['world']:26}  false {row['with_false_accusation']:3}/{of}  found {row['found']:3}/{of}"
        f"  beside {row['beside_the_planted']:3}/{of}  {by}  missed {row['missed'][:8]}",
        flush=True,
    )
    for dimension, key, says in row["sentences"] if show else ():
        print(f"    {dimension} {key}: {says}")


if __name__ == "__main__":
    main()
