"""``celery poison flower``: Flower, with the quarantine in it."""

from __future__ import annotations

import click
from celery.bin.base import CeleryCommand


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
