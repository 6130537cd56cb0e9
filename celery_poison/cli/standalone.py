"""``celery-poison``: what needs no app. Everything else is ``celery -A proj poison ...``."""

from __future__ import annotations

from importlib import import_module

import click

from celery_poison.text import version

#: Where each command is. The rooms of the last two may be left out of an installation.
_MODULES = {
    "pipeline": "celery_poison.cli.pipeline",
    "demo": "celery_poison.demo.command",
    "chaos": "celery_poison.chaos.command",
}


class _Commands(click.Group):
    """Imports a command only when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return _load(cmd_name) if cmd_name in _MODULES else None


def _load(name: str) -> click.Command:
    module = _MODULES[name]
    try:
        found: click.Command = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name not in (module, module.rpartition(".")[0], "rich", "rich.text"):
            raise
        return _absent(name)
    return found


def _absent(name: str) -> click.Command:
    @click.command(name=name, help="Not part of this installation.")
    def absent() -> None:
        raise click.ClickException(f"the {name} is not installed: pip install 'celery-poison[demo]'")

    return absent


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version(), prog_name="celery-poison")
def main() -> None:
    """celery_poison: one bad message no longer takes the fleet down.

    \b
    celery-poison demo                    see it work, on servers of its own
    celery-poison chaos                   break its servers and workers, and see what is lost
    celery-poison pipeline --help         learn from the journal, with Spark
    celery -A proj poison status          how things stand in your app
    celery -A proj poison list            what is in quarantine
    celery -A proj poison --help          everything else
    """


if __name__ == "__main__":
    main()
