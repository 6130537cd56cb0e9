"""``celery poison monitor``: the standalone monitor."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import click

from celery_poison import signals
from celery_poison.cli.command import app_of, json_option, verb
from celery_poison.cli.output import wants_json
from celery_poison.cli.standby import StandaloneMonitor
from celery_poison.metrics import register

#: Signal -> its line.
_STORIES: dict[str, str] = {
    "monitor_changed": "active since now, with fencing number {fence}",
    "worker_lost": "worker {worker} is lost ({cause}, noticed as {how}), incident {incident}",
    "fleet_gate_closed": "{deaths} of {fleet} workers died: the fleet gate is closed, incident {incident}",
    "fleet_gate_lifted": "the fleet gate is lifted: deaths convict again",
    "failover_finished": "worker {worker}: {flagged} flagged, {put_back} put back, incident {incident}",
    "message_candidate": "task {message[task]}[{message[id]}] is a candidate now ({cause})",
}


@verb(
    click.option(
        "--metrics-port",
        type=click.IntRange(0, 65535),
        help="Serve metrics for Prometheus at this port; 0: any free one.",
    ),
    click.option("--metrics-address", default="127.0.0.1", show_default=True, help="At this address."),
    json_option,
)
def monitor(ctx: click.Context, metrics_port: int | None, metrics_address: str) -> None:
    """Watch the workers from a process of its own, until SIGTERM or Ctrl-C.

    Every worker has a monitor already; one is active, the others stand by. For a fleet of one worker this is
    the standby. Any number may run.

    \b
    celery -A proj poison monitor
    celery -A proj poison monitor --metrics-port 9808
    """
    standalone = StandaloneMonitor(app_of(ctx))
    tellers = [_listen(name, story) for name, story in _STORIES.items()]
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: standalone.stop())
    with ExitStack() as stack:
        if metrics_port is not None:
            served = stack.enter_context(register(app_of(ctx))).serve(metrics_port, metrics_address)
            click.echo(f"celery poison: metrics at http://{metrics_address}:{served}/metrics", err=True)
        click.echo(f"celery poison: {standalone.name} watches", err=True)
        standalone.run()
    del tellers  # signals hold them weakly
    click.echo("celery poison: the monitor has left", err=True)


def _listen(name: str, story: str) -> Callable[..., None]:
    as_json = wants_json()

    def hear(sender: object = None, signal: object = None, **facts: Any) -> None:
        click.echo(json.dumps({"event": name, **facts}) if as_json else story.format(**facts))

    getattr(signals, name).connect(hear)
    return hear
