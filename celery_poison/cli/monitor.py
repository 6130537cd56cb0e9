"""``celery poison monitor | flower``: what runs until it is told to stop."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import click
from celery.bin.base import CeleryCommand

from celery_poison import signals
from celery_poison.cli.session import app_of, json_option, verb
from celery_poison.failover.monitor import StandaloneMonitor
from celery_poison.metrics import register

#: Signal -> how it is told.
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
        help="Serve metrics for Prometheus at this port; 0: any that is free.",
    ),
    click.option("--metrics-address", default="127.0.0.1", show_default=True, help="At this address."),
    json_option,
)
def monitor(ctx: click.Context, metrics_port: int | None, metrics_address: str, as_json: bool) -> None:
    """Watch the workers from a process of its own, until SIGTERM or Ctrl-C.

    Every worker carries a monitor already; one of them is active, the others stand by. A fleet of one worker
    has no standby: this is one. Any number of them may run.

    \b
    celery -A proj poison monitor
    celery -A proj poison monitor --json | tee -a incidents.jsonl
    celery -A proj poison monitor --metrics-port 9808
    """
    standalone = StandaloneMonitor(app_of(ctx))
    tellers = [_tell(name, story, as_json) for name, story in _STORIES.items()]
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


def _tell(name: str, story: str, as_json: bool) -> Callable[..., None]:
    def heard(sender: object = None, signal: object = None, **facts: Any) -> None:
        click.echo(json.dumps({"event": name, **facts}) if as_json else story.format(**facts))

    getattr(signals, name).connect(heard)
    return heard


@click.command(cls=CeleryCommand, context_settings={"ignore_unknown_options": True})
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[FLOWER OPTIONS]...")
@click.pass_context
def flower(ctx: click.Context, options: tuple[str, ...]) -> None:
    """Start Flower with a Quarantine tab. Takes all of Flower's options.

    \b
    celery -A proj poison flower --port=5555 --basic_auth=ann:secret
    celery -A proj poison flower --conf=flowerconfig.py --url_prefix=flower
    """
    try:
        from flower.command import flower as flowers

        from celery_poison.flower import install
    except ModuleNotFoundError as error:
        if error.name not in ("flower", "tornado"):
            raise
        raise click.ClickException("Flower is not installed: pip install 'celery-poison[flower]'") from None
    install()
    # As if it had been called itself, below `celery`, whose options it looks at.
    with flowers.make_context("flower", [*options], parent=ctx.find_root()) as context:
        flowers.invoke(context)
