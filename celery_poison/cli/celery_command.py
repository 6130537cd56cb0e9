"""``celery poison``: imported by every ``celery`` command, so that verbs are imported only when used."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click
from celery.bin.base import CeleryCommand, handle_preload_options
from click_didyoumean import DYMGroup  # type: ignore[import-untyped]

from celery_poison.basics.rooms import rooms_with
from celery_poison.worker import inspecting as inspecting  # `celery inspect` knows only what is registered

#: Of the core.
VERBS = {
    "status": "celery_poison.cli.status:status",
    "ready": "celery_poison.cli.status:ready",
    "alive": "celery_poison.cli.liveness:alive",
    "list": "celery_poison.cli.lists:list_",
    "show": "celery_poison.cli.show:show",
    "groups": "celery_poison.cli.lists:groups",
    "release": "celery_poison.cli.decision_verbs:release",
    "fail": "celery_poison.cli.decision_verbs:fail",
    "discard": "celery_poison.cli.decision_verbs:discard",
    "edit": "celery_poison.cli.edit:edit",
    "restore": "celery_poison.cli.decision_verbs:restore",
    "purge": "celery_poison.cli.transfer:purge",
    "export": "celery_poison.cli.transfer:export",
    "import": "celery_poison.cli.transfer:import_",
    "workers": "celery_poison.cli.status:workers",
    "incidents": "celery_poison.cli.incident_verbs:incidents",
    "policy": "celery_poison.cli.rule_verbs:policy",
    "block": "celery_poison.cli.rule_verbs:block",
    "unblock": "celery_poison.cli.rule_verbs:unblock",
    "gate": "celery_poison.cli.rule_verbs:gate",
    "monitor": "celery_poison.cli.monitor_verb:monitor",
    "journal": "celery_poison.cli.journal_verbs:journal",
    "doctor": "celery_poison.cli.doctor:doctor",
    "flower": "celery_poison.cli.celery_command:flower",
    "pipeline": "celery_poison.cli.pipeline:pipeline",
}


HELP = {"help_option_names": ["-h", "--help"]}


class LazyGroup(DYMGroup):
    """A group that imports a verb when it is asked for.

    Args:
        places: verb -> module and attribute, in the order in which --help lists them.
    """

    def __init__(self, *args: Any, places: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.places = places

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.places]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module, _, attribute = self.places.get(cmd_name, "").partition(":")
        loaded: click.Command | None = getattr(import_module(module), attribute) if module else None
        return loaded


class _Verbs(LazyGroup):
    """With those of extensions: ``VERBS`` of their modules ``verbs``, listed after the verb ``AFTER``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        names = super().list_commands(ctx)
        for room in rooms_with("verbs"):
            place = names.index(room.AFTER) + 1
            names[place:place] = [verb.name for verb in room.VERBS]
        return names

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.places:
            return super().get_command(ctx, cmd_name)
        verbs = (verb for room in rooms_with("verbs") for verb in room.VERBS)
        return next((verb for verb in verbs if verb.name == cmd_name), None)


@click.group(cls=_Verbs, places=VERBS, context_settings=HELP)
@click.pass_context
@handle_preload_options
def poison(ctx: click.Context) -> None:
    """See poison messages, and decide about them.

    Messages that killed their workers lie in quarantine, byte for byte, until a person releases, fails or
    discards them.

    \b
    celery -A proj poison status
    celery -A proj poison list --filter task=shop.render
    celery -A proj poison show ID
    celery -A proj poison release ID --note "fixed in 1.2.3"

    Exit status: 0 done, 1 refused or nothing matched, 2 wrong usage, 3 Redis is unreachable or refuses.
    """


@click.command(cls=CeleryCommand, context_settings={"ignore_unknown_options": True})
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[FLOWER OPTIONS]...")
@click.pass_context
def flower(ctx: click.Context, options: tuple[str, ...]) -> None:
    """Start Flower with a Quarantine tab. Takes all of Flower's options.

    \b
    celery -A proj poison flower --port=5555 --basic_auth=ann:secret
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
