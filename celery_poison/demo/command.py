"""The command ``celery-poison demo``."""

from __future__ import annotations

import json
import logging
import shlex
import sys
from contextlib import suppress

import click
from rich.text import Text

from celery_poison.demo.app import POISONS
from celery_poison.demo.screen import Screen
from celery_poison.demo.stage import SLOTS, WORKERS, Stage, open_stage, plan
from celery_poison.demo.story import Report, Story, play_plain
from celery_poison.testing.servers import Interrupted, Interruptions

EXIT_BROKEN, EXIT_NO_REDIS = 1, 3

_EPILOG = """\b
Examples:
  celery-poison demo                      watch it; about half a minute
  celery-poison demo --plain              the same load without the plugin
  celery-poison demo --seed 7 -n 1000     more work, the poison elsewhere in it
  celery-poison demo --json | jq .ok      for a script
  celery-poison demo --keep               look around afterwards, until Ctrl-C

Exit status: 0 every promise held, 1 one was broken, 2 wrong usage, 3 no Redis, 128 + signal when stopped.
"""


@click.command("demo", epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-n", "--healthy", type=click.IntRange(1, 100_000), default=300, show_default=True,
              help="How many healthy tasks are sent.")  # fmt: skip
@click.option(
    "--seed", type=int, default=1, show_default=True, help="Decides where among them the poison is."
)
@click.option("--plain", "plain_", is_flag=True, help="Leave the plugin out, and see the crash loop.")
@click.option("--seconds", type=click.FloatRange(1, 600), default=20.0, show_default=True,
              help="How long --plain goes on; Ctrl-C ends it sooner.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON summary on stdout; progress goes to stderr.")
@click.option("--keep", is_flag=True, help="Afterwards leave servers and workers running until Ctrl-C.")
def demo(healthy: int, seed: int, plain_: bool, seconds: float, as_json: bool, keep: bool) -> None:
    """Poison among healthy work, and what becomes of both.

    Starts a private Redis and two real workers, sends healthy tasks with one message of every deadly
    kind among them, and shows how each is quarantined while the healthy ones finish; then one is
    released, one is given up. Needs nothing that runs already, and leaves nothing behind.
    """
    screen = Screen(sys.stderr if as_json else sys.stdout, guarded=not plain_)
    # Else the last resort of logging prints their warnings into the panel when Redis stops.
    for name in ("celery", "celery_poison", "kombu"):
        logging.getLogger(name).addHandler(logging.NullHandler())
    try:
        with Interruptions() as interruptions, open_stage(plain=plain_) as stage:
            report = _play(stage, screen, interruptions, healthy, seed, seconds)
            _tell(report, screen, stage, as_json=as_json)
            interruptions.pause()
            if keep:
                _keep_running(stage, screen, interruptions)
        status = 0 if report.ok else EXIT_BROKEN
    except Interrupted as interrupted:
        screen.close()
        screen.say(Text("\n  Stopped; nothing is left behind.", "dim"))
        status = interrupted.exit_status
    except FileNotFoundError as error:
        click.echo(f"Error: {error}", err=True)
        status = EXIT_NO_REDIS
    finally:
        screen.close()
    sys.exit(status)


def _play(
    stage: Stage, screen: Screen, interruptions: Interruptions, healthy: int, seed: int, seconds: float
) -> Report:
    """Send the load and look on; ``seconds``: how long, where the plugin is left out."""
    kind = "" if stage.quarantine else ", without the plugin"
    sent = f"{healthy} healthy tasks with {len(POISONS)} poison messages among them"
    fleet = f"{WORKERS} workers of {SLOTS} processes"
    screen.say(Text(f"celery-poison demo{kind}", "bold"), Text(f"{sent}; {fleet}\n", "dim"))
    interruptions.pause()
    stage.send(plan(healthy, seed))
    stage.workers.start()
    if stage.quarantine is None:
        return play_plain(stage, screen, interruptions, seconds)
    return Story(stage, stage.quarantine, screen, interruptions).play()


def _tell(report: Report, screen: Screen, stage: Stage, *, as_json: bool) -> None:
    screen.close()
    if as_json:
        click.echo(json.dumps(report.as_dict(), indent=2))
    else:
        screen.say(*report.lines())
    if not report.ok:
        complaints = (Text(f"  {line}", "dim") for line in stage.complaints())
        screen.say(Text("\n  The workers' last complaints:", "red"), *complaints)


def _keep_running(stage: Stage, screen: Screen, interruptions: Interruptions) -> None:
    environment = " ".join(f"{name}={shlex.quote(value)}" for name, value in stage.environment.items())
    screen.say(
        Text("\n  Everything goes on running until Ctrl-C. To look around:", "bold"),
        f"  redis-cli -u {stage.redis_url}",
        f"  {environment} celery -A celery_poison.demo.app poison list",
        f"  {environment} celery -A celery_poison.demo.app inspect active",
    )
    with suppress(Interrupted):
        while True:
            interruptions.pause(0.2)
