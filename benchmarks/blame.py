"""Who is blamed when workers die: ours beside the rules that count, with real workers and simulated ones.

See README.md beside this file for what is measured and printed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from blame_figures import Fortune, figures
from blame_fleet import Fleet, Told
from blame_report import check, lines, page, plot, worlds
from blame_rules import RULES, CountTo, DeliveryLimit, Ours, Rule
from blame_script import WORLDS, World, script
from blame_sim import Pace, Simulation

DOCS = Path(__file__).resolve().parents[1] / "docs"
#: Simulated fleets that a real one is compared with.
TWINS = 100
#: Share of the poisons that may need a third death: their worker died just after their cell.
LATE = 0.01


def simulate(args: argparse.Namespace) -> dict[str, Any]:
    """Play every world under every rule, for as long as ours has its share of the deaths."""
    worlds: dict[str, Any] = {}
    for world in WORLDS:
        seconds = _long_enough(world, args)
        rows = {}
        for rule in RULES:
            began = time.monotonic()
            fleet = _simulated(world, rule, args.seed, Pace(), seconds)
            rows[rule.name] = asdict(figures(fleet.fortunes.values(), fleet.deaths))
            took = time.monotonic() - began
            _say(args, f"  {world.name}, {rule.name}: {fleet.deaths} deaths, {took:.0f} s")
        worlds[world.name] = {"world": asdict(world), "seconds": seconds, "rules": rows}
    return {"mode": "simulate", "seed": args.seed, "worlds": worlds}


def _long_enough(world: World, args: argparse.Namespace) -> float:
    wanted, seconds = args.deaths / len(WORLDS), 500.0
    while (had := _simulated(world, Ours(), args.seed, Pace(), seconds).deaths) < wanted:
        seconds *= max(1.2, min(10.0, 1.05 * wanted / max(1, had)))
    return seconds


def _simulated(world: World, rule: Rule, seed: int, pace: Pace, seconds: float) -> Simulation:
    fleet = Simulation(world, rule, seed, pace)
    fleet.play(itertools.takewhile(lambda event: event.at < seconds, script(world, seed)))
    return fleet


def real(args: argparse.Namespace) -> dict[str, Any]:
    """Play the first world to real workers, and hold simulated ones against them."""
    world = replace(WORLDS[0], workers=args.workers, slots=args.concurrency)
    with Fleet(world, args.pools.split(","), args.count, args.log) as fleet:
        told = fleet.play(script(world, args.seed), args.deaths, args.patience)
    rule: Rule = CountTo(args.count) if args.count else Ours()
    return {
        "mode": "real",
        "seed": args.seed,
        "pools": args.pools,
        "world": asdict(world),
        "rule": rule.name,
        "seconds": told.seconds,
        "late": told.late,
        "pace": {"notice": told.notice, "restart": told.restart},
        "figures": asdict(figures(told.fortunes.values(), told.deaths)),
        "same_history": {} if args.count else _counted(told),
        "check": _against_twins(world, rule, told),
        "late_poisons": told.late_poisons,
        "complaints": told.complaints,
        "left_behind": fleet.left_behind,
    }


def _counted(told: Told) -> dict[str, Any]:
    """Ask the counting rules about the very history that ours has seen."""
    found = {}
    for rule in RULES[1:]:
        judged = {id: _judged(rule, told, id, fortune) for id, fortune in told.fortunes.items()}
        found[rule.name] = asdict(figures(judged.values(), told.deaths))
    return found


def _judged(rule: Rule, told: Told, id: str, fortune: Fortune) -> Fortune:
    match rule:
        case DeliveryLimit():
            return replace(fortune, convicted=told.pasts[id].returns > rule.limit)
        case CountTo():
            return replace(fortune, convicted=fortune.deaths >= rule.bound)
    raise ValueError(rule)


def _against_twins(world: World, rule: Rule, told: Told) -> dict[str, list[float]]:
    # A cell is a process that loads the app, as a worker is: on a busy machine both take longer.
    slower = told.restart / Pace().restart
    pace = Pace(told.notice, told.restart, Pace().cell * slower)
    twins = [_simulated(world, rule, seed, pace, told.seconds) for seed in range(TWINS)]
    return check(_measures(told), [_measures(twin) for twin in twins])


def _measures(played: Told | Simulation) -> dict[str, float]:
    found, deaths = figures(played.fortunes.values(), played.deaths), max(1, played.deaths)
    hit_again = sum(one.kind == "innocent" and one.deaths > 1 for one in played.fortunes.values())
    return {
        "whole-worker deaths": found.deaths,
        "innocents that were running, per death": played.bystanders / deaths,
        "innocents hit again, on trial or in a pool, per death": hit_again / deaths,
        "deaths that a poison caused until it was caught": found.until_caught,
        "run time lost, share of the useful": found.lost,
        "seconds to clear an innocent, median": found.clear_p50,
        "innocents convicted, per death": found.convicted / deaths,
    }


def _say(args: argparse.Namespace, text: str) -> None:
    if not args.quiet:
        print(text, file=sys.stderr, flush=True)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    commands = parser.add_subparsers(dest="mode", required=True)
    simulated = commands.add_parser("simulate", help="every world under every rule, without processes")
    simulated.add_argument("--deaths", type=int, default=10_000, help="of whole workers, under ours (10000)")
    actual = commands.add_parser("real", help="the first world, with real workers on a private Redis")
    actual.add_argument("--deaths", type=int, default=300, help="of whole workers (300)")
    actual.add_argument("--count", type=int, default=0, metavar="N", help="follow the rule `count to N`")
    actual.add_argument("--workers", type=int, default=WORLDS[0].workers)
    actual.add_argument("--concurrency", type=int, default=WORLDS[0].slots, help="of each worker")
    actual.add_argument("--pools", default="prefork,threads", help="of the workers, in turn")
    actual.add_argument("--patience", type=float, default=180.0, metavar="S", help="for the last messages")
    actual.add_argument("--log", type=Path, metavar="FILE", help="where the workers log, a directory")
    for command in (simulated, actual):
        command.add_argument("--seed", type=int, default=1)
        command.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
        command.add_argument("--quiet", action="store_true", help="no progress on stderr")
    report = commands.add_parser("report", help="write the pages and the picture from JSON files")
    report.add_argument("files", type=Path, nargs="+")
    return parser.parse_args(argv)


def is_good(found: dict[str, Any]) -> bool:
    """Ours convicts no innocent, catches poisons within two deaths or, rarely, three, and leaves nothing."""
    if found["mode"] == "simulate":
        ours = [world["rules"]["ours"] for world in found["worlds"].values()]
    elif found["rule"] == "ours":
        ours = [found["figures"]]
        if found["complaints"] or found["left_behind"]:
            return False
    else:
        return True
    return all(
        not one["convicted"]
        and not one["unfinished"]
        and one["caught"] == one["poisons"]
        and one["worst"] <= 3
        and one["late"] <= LATE * one["poisons"]
        for one in ours
    )


def main() -> int:
    args = parse()
    if args.mode == "report":
        found = [json.loads(file.read_text()) for file in args.files]
        (DOCS / "blame.md").write_text(page(found))
        (DOCS / "blame-worlds.md").write_text(worlds(found))
        (DOCS / "blame.svg").write_text(plot(found))
        return 0
    # A cancelled job gets SIGTERM: as an interrupt it stops the fleet first.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        one = simulate(args) if args.mode == "simulate" else real(args)
    except KeyboardInterrupt:
        return 130
    if args.json:
        args.json.write_text(json.dumps(one, indent=1))
    print("\n".join(lines(one)))
    return 0 if is_good(one) else 1


if __name__ == "__main__":
    sys.exit(main())
