"""``celery poison export | import``: messages in quarantine as a file, for another environment."""

from __future__ import annotations

from typing import IO, Any

import click

from celery_poison.cli.acts import Order, chosen, of_quarantine, say_refusals
from celery_poison.cli.output import print_json
from celery_poison.cli.session import REFUSED, json_option, open_quarantine, verb, who_options
from celery_poison.text import count_of


@verb(
    *of_quarantine,
    click.option("--output", type=click.File("w", encoding="ascii"), default="-", help="A file, not stdout."),
)
def export(ctx: click.Context, output: IO[str], **options: Any) -> None:
    """Write messages in quarantine, each with its body: one JSON object in each line. Nothing changes.

    The file holds what was sent, secrets included. Import takes it.

    \b
    celery -A proj poison export --group GROUP --output poison.jsonl
    celery -A proj poison export ID
    """
    order = Order(**options, yes=True)
    quarantine, count = open_quarantine(ctx), 0
    for line in quarantine.export(chosen(quarantine, "export", order)):
        output.write(line + "\n")
        count += 1
    click.echo(f"{count_of(count, 'message')} written" if count else "nothing matched", err=True)
    if not count:
        ctx.exit(REFUSED)


@verb(
    click.argument("file", type=click.File("r", encoding="ascii", errors="replace"), metavar="FILE"),
    *who_options,
    json_option,
    name="import",
)
def import_(ctx: click.Context, file: IO[str], note: str, actor: str, as_json: bool) -> None:
    """Put messages that export wrote into this quarantine; FILE is - for stdin.

    The same file twice imports each message once. Lines that are none of an export are refused, and the
    others imported. A worker will run what you release of it: import only files that you trust.

    \b
    celery -A proj poison import poison.jsonl --note "from production, to reproduce it"
    """
    outcomes = open_quarantine(ctx).import_(file, actor=actor, note=note)
    if as_json:
        print_json([outcome.as_dict() for outcome in outcomes])
    else:
        say_refusals(outcomes)
    refused = sum(not outcome.done for outcome in outcomes)
    known = sum(outcome.done and bool(outcome.error) for outcome in outcomes)
    told = f"{count_of(len(outcomes) - refused - known, 'message')} imported"
    told += (f", {known} known already" if known else "") + (f", {refused} refused" if refused else "")
    click.echo(told, err=True)
    if refused or not outcomes:
        ctx.exit(REFUSED)
