"""``celery-poison``: what needs no app. Everything else is ``celery -A proj poison ...``."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

import click

_DEMO = "celery_poison.demo.command"


class _Commands(click.Group):
    """Imports a command only when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return ["demo", "pipeline"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "pipeline":
            found: click.Command = import_module("celery_poison.cli.pipeline").pipeline
            return found
        return _demo() if cmd_name == "demo" else None


def _demo() -> click.Command:
    try:
        found: click.Command = import_module(_DEMO).demo
    except ModuleNotFoundError as error:
        if error.name not in (_DEMO, _DEMO.rpartition(".")[0]):
            raise
        return _absent
    return found


@click.command(name="demo", help="Not part of this installation.")
def _absent() -> None:
    raise click.ClickException("the demo is not part of this installation")


def _version() -> str:
    try:
        return version("celery-poison")
    except PackageNotFoundError:  # run from a source tree
        return "unknown"


@click.group(cls=_Commands)
@click.version_option(_version(), prog_name="celery-poison")
def main() -> None:
    """celery_poison: one bad message no longer takes the fleet down.

    \b
    celery-poison demo                    see it work, on servers of its own
    celery-poison pipeline --help         learn from the journal, with Spark
    celery -A proj poison status          how things stand in your app
    celery -A proj poison list            what is in quarantine
    celery -A proj poison --help          everything else
    """


if __name__ == "__main__":
    main()
