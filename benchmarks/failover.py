"""How long a message waits for its next start when its whole worker dies, or freezes, under load.

See README.md beside this file for what is measured and printed.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from failover_blows import Blow, Torment
from failover_fleet import Fleet, Load

from celery_poison.settings import Settings
from celery_poison.testing import wait_until

#: What the plugin is held to, in seconds: half of all kills, and all but one in a hundred.
HALF, MOST = 2.0, 5.0
#: Seconds that a freeze may take beyond the time after which silence means death.
BEYOND = 2.0
#: Celery's default, in seconds; RabbitMQ gives up a silent connection within twice that.
BROKER_HEARTBEAT = 120.0

# --- what came of it ---------------------------------------------------------------------------------


def spread(values: Sequence[float | None]) -> dict[str, float] | None:
    """Return the percentiles; None without any value."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return None

    def rank(part: float) -> float:
        return known[math.ceil(part * len(known)) - 1]

    return {"count": len(known), "p50": rank(0.5), "p90": rank(0.9), "p99": rank(0.99), "max": known[-1]}


def summary(fleet: Fleet, blows: Sequence[Blow], args: argparse.Namespace) -> dict[str, Any]:
    """Return every figure; times in seconds."""
    chronicle = fleet.chronicle
    convicted = fleet.convicted()
    lost = sorted(set(fleet.unfinished()) - set(convicted))
    twice = chronicle.twice_at_once()
    waits = [runs[0].start - at for name, at in fleet.sent.items() if (runs := chronicle.of_message[name])]
    found = {
        "victim": spread([blow.victim for blow in blows]),
        "running_beside": spread([time for blow in blows for time in blow.beside]),
        "prefetched": spread([time for blow in blows for time in blow.prefetched]),
        "noticed": spread([blow.noticed for blow in blows]),
        "put_back": spread([blow.put_back for blow in blows]),
        "messages": len(fleet.sent),
        "healthy_wait": statistics.median(waits),
        "not_started_again": sum(blow.victim is None for blow in blows),
        "lost": lost,
        "unexplained_runs": chronicle.unexplained(),
        "twice_at_once": twice,
        "convicted": convicted,
        "blows": [blow._asdict() for blow in blows],
    }
    if args.mode == "freeze":
        found["overlap"] = spread([blow.overlap for blow in blows])
        found["went_on"] = sum(blow.went_on for blow in blows)
        found["began"] = sum(blow.began for blow in blows)
    return found


def targets(args: argparse.Namespace) -> tuple[float, float]:
    """Return the longest times allowed: for half of the blows, and for 99 of 100."""
    if args.mode == "kill":
        return HALF, MOST
    silence = Settings().activation_interval
    if args.broker == "rabbitmq":
        # Whatever we know: until RabbitMQ has closed the connection it keeps the messages.
        silence = max(silence, 2 * (args.broker_heartbeat or BROKER_HEARTBEAT))
    return silence + BEYOND, silence + BEYOND


def verdict(found: dict[str, Any], args: argparse.Namespace) -> bool:
    """Tell whether the times were kept and nothing happened that must not.

    After a freeze the revived worker may overlap with its successor: that is measured, not judged.
    """
    half, most = targets(args)
    in_time = (
        found["victim"] is not None and found["victim"]["p50"] <= half and found["victim"]["p99"] <= most
    )
    clean = not (found["lost"] or found["convicted"] or found["not_started_again"])
    if args.mode == "kill":
        clean = clean and not (found["unexplained_runs"] or found["twice_at_once"])
    return bool(in_time and clean)


def show(found: dict[str, Any], args: argparse.Namespace) -> None:
    """Print the figures."""
    half, most = targets(args)
    verb = {"kill": "SIGKILL", "freeze": "SIGSTOP"}[args.mode]
    fleet = f"{args.workers} x {args.pool} -c {args.concurrency} on {args.broker}"
    wait = f"a healthy one waits {found['healthy_wait'] * 1e3:.0f} ms"
    print(f"{len(found['blows'])} whole workers of {fleet}, {verb}; {found['messages']} messages, {wait}")
    if args.backlog:
        print(f"  {args.backlog} messages were waiting at any time")
    print(f"  seconds from {verb} to                 n      p50      p90      p99      max")
    lines = {
        "victim": f"its next start; target {half:g} / {most:g}",
        "running_beside": "that of what ran beside it",
        "prefetched": "that of what was prefetched",
        "noticed": "the incident",
        "put_back": "its end: all put back",
    }
    for name, text in lines.items():
        _line(text, found[name])
    if args.mode == "freeze":
        print("  seconds from SIGCONT to")
        _line("the last mark of the revived", found["overlap"])
        print(
            f"  of messages that others had taken over, the revived went on with {found['went_on']}"
            f" and began {found['began']}"
        )
    if found["gave_up"]:
        print(f"  gave up: {found['gave_up']}")
    print(
        f"  lost {len(found['lost'])}, not started again {found['not_started_again']},"
        f" convicted {len(found['convicted'])}, runs that nothing explains {len(found['unexplained_runs'])},"
        f" twice at one time {len(found['twice_at_once'])}"
        f" (longest {max(found['twice_at_once'].values(), default=0.0):.3f} s)"
    )
    for name in ("lost", "convicted"):
        if found[name]:
            print(f"    {name}: {', '.join(found[name][:10])}")
    for message, seconds in found["unexplained_runs"].items():
        when = "its worker lived on" if seconds is None else f"its worker was killed {seconds:.3f} s later"
        print(f"    {message} had ended; {when}")


def _line(text: str, one: dict[str, float] | None) -> None:
    if one is None:
        print(f"    {text:<32} {0:5}")
    else:
        figures = "".join(f"{one[name]:9.3f}" for name in ("p50", "p90", "p99", "max"))
        print(f"    {text:<32} {one['count']:5.0f}{figures}")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Start a fleet, strike it ``args.kills`` times, and return the figures."""
    load = Load(args.workers, args.pool, args.concurrency, args.rate, 0.02, 0.05, args.seed, args.backlog)
    with Fleet(args.broker, load, args.broker_heartbeat) as fleet:
        _say(args, "  the fleet is up; its monitors listen before they believe in any death")
        time.sleep(Settings().activation_interval + args.settle)
        blows, gave_up = strike(fleet, args)
        fleet.stop_sending()
        with suppress(AssertionError):  # what is lost is counted
            wait_until(lambda: not set(fleet.unfinished()) - set(fleet.convicted()), args.patience)
        found = summary(fleet, blows, args)
    return found | {"left_behind": fleet.left_behind, "gave_up": gave_up}


def strike(fleet: Fleet, args: argparse.Namespace) -> tuple[list[Blow], str]:
    """Return what came of each blow, and why there were not more."""
    torment, blows, began = Torment(fleet, args), [], time.monotonic()
    try:
        for number in range(1, args.kills + 1):
            blows.append(torment.blow(number))
            _say(args, f"  {number}/{args.kills} after {time.monotonic() - began:.0f} s: {_told(blows[-1])}")
    except AssertionError as error:
        _say(args, fleet.log_text()[-5000:])
        return blows, str(error)
    return blows, ""


def _told(blow: Blow) -> str:
    noticed = "not noticed" if blow.noticed is None else f"noticed {blow.noticed:.2f} s"
    again = "not started again" if blow.victim is None else f"again {blow.victim:.2f} s"
    rest = f"prefetched {len(blow.prefetched)}: {max(blow.prefetched, default=0.0):.2f} s"
    overlap = f", overlap {blow.overlap:.2f} s" if blow.went_on or blow.began else ""
    return f"{blow.life}, {noticed}, {again}, {rest}{overlap}"


def _say(args: argparse.Namespace, text: str) -> None:
    if not args.quiet:
        print(text, file=sys.stderr, flush=True)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--broker", choices=("redis", "rabbitmq"), default="redis")
    parser.add_argument("--mode", choices=("kill", "freeze"), default="kill")
    parser.add_argument("--kills", type=int, default=200, help="workers that are killed or frozen (200)")
    parser.add_argument("--workers", type=int, default=3, help="in the fleet (3)")
    parser.add_argument("--pool", default="prefork", help="of each worker (prefork)")
    parser.add_argument("--concurrency", type=int, default=2, help="of each worker (2)")
    parser.add_argument("--rate", type=float, default=30.0, help="healthy messages per second (30)")
    parser.add_argument(
        "--backlog", type=int, default=0, metavar="N", help="keep N messages waiting, instead of a rate"
    )
    parser.add_argument(
        "--victim-seconds", type=float, metavar="S", help="run time of the struck task (kill 1.5, freeze 6)"
    )
    parser.add_argument("--settle", type=float, default=0.5, help="rest of the whole fleet, in s (0.5)")
    parser.add_argument(
        "--broker-heartbeat", type=float, metavar="S", help="RabbitMQ's, in s (Celery's default, 120)"
    )
    parser.add_argument("--patience", type=float, metavar="S", help="longest wait for anything, in s")
    parser.add_argument("--seed", type=int, default=1, help="of run times and moments of death (1)")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    args = parser.parse_args(argv)
    if args.workers < 2:
        parser.error("--workers must be at least 2: somebody has to go on")
    if args.victim_seconds is None:
        # Long enough for a revived worker to notice while it goes on.
        args.victim_seconds = 1.5 if args.mode == "kill" else 6.0
    if args.patience is None:
        args.patience = targets(args)[1] + 60
    return args


def main() -> int:
    args = parse()
    # A cancelled job gets SIGTERM: as an interrupt it stops the fleet first.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        found = run(args)
    except KeyboardInterrupt:
        return 130
    reached = verdict(found, args) and not found["left_behind"] and not found["gave_up"]
    if args.json:
        print(json.dumps({"arguments": vars(args), **found, "targets_reached": reached}, indent=2))
    else:
        show(found, args)
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
