"""``celery-poison``: what needs no app. Everything else is ``celery -A proj poison ...``."""

from __future__ import annotations

import click

from celery_poison.basics.text import version
from celery_poison.cli.celery_command import HELP, LazyGroup

#: Command -> its place. The room of the demo may be left out of an installation.
COMMANDS = {
    "demo": "celery_poison.demo.story:demo",
    "pipeline": "celery_poison.cli.pipeline:pipeline",
}


class _Commands(LazyGroup):
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        try:
            return super().get_command(ctx, cmd_name)
        except ModuleNotFoundError as error:
            module = self.places[cmd_name].partition(":")[0]
            if error.name not in (module, module.rpartition(".")[0], "rich", "rich.text"):
                raise

        @click.command(name=cmd_name, help="Not part of this installation.")
        def absent() -> None:
            raise click.ClickException(f"the {cmd_name} is not installed: pip install 'celery-poison[demo]'")

        return absent


@click.group(cls=_Commands, places=COMMANDS, context_settings=HELP)
@click.version_option(version(), prog_name="celery-poison")
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
