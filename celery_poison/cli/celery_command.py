"""``celery poison``: imported by every ``celery`` command, so that verbs are imported only when used."""

from __future__ import annotations

from importlib import import_module

import click
from celery.bin.base import handle_preload_options
from click_didyoumean import DYMGroup  # type: ignore[import-untyped]

#: verb -> module and attribute below this package, in the order in which --help lists them.
VERBS = {
    "status": "status:status",
    "list": "reading:list_",
    "show": "reading:show",
    "groups": "reading:groups",
    "release": "acts:release",
    "fail": "acts:fail",
    "discard": "acts:discard",
    "workers": "status:workers",
    "incidents": "status:incidents",
    "policy": "rules:policy",
    "block": "rules:block",
    "unblock": "rules:unblock",
    "gate": "rules:gate",
    "monitor": "monitor:monitor",
    "journal": "reading:journal",
    "doctor": "doctor:doctor",
    "flower": "monitor:flower",
    "pipeline": "pipeline:pipeline",
}


class LazyGroup(DYMGroup):
    """A group that imports a verb when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*VERBS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = VERBS.get(cmd_name)
        if place is None:
            return None
        module, _, attribute = place.partition(":")
        found: click.Command = getattr(import_module(f"celery_poison.cli.{module}"), attribute)
        return found


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.pass_context
@handle_preload_options
def poison(ctx: click.Context) -> None:
    """See and decide what becomes of poison messages.

    Messages that killed their workers lie in quarantine, byte for byte, until somebody releases, fails or
    discards them.

    \b
    celery -A proj poison status
    celery -A proj poison list --filter task=shop.render
    celery -A proj poison show ID
    celery -A proj poison release ID --note "fixed in 1.2.3"

    Exit status: 0 done, 1 refused or nothing matched, 2 wrong usage, 3 Redis is unreachable or refuses.
    """
