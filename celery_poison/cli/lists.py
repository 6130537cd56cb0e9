"""``celery poison list | groups``: what is kept."""

from __future__ import annotations

from collections.abc import Sequence

import click

from celery_poison import causes
from celery_poison.basics.text import argument, command, count_of, duration, short
from celery_poison.cli.command import filter_options, json_option, open_quarantine, verb
from celery_poison.cli.output import ROWS, answer_records, answer_table, wants_json
from celery_poison.desk import Quarantine
from celery_poison.desk.search import By, Filter, Group
from celery_poison.states import State, kept_state

limit_option = click.option(
    "--limit", type=click.IntRange(1), help=f"At most so many; default {ROWS}, with --json all."
)


def _state(ctx: click.Context, parameter: click.Parameter, typed: str) -> State:
    try:
        return kept_state(typed)
    except ValueError as wrong:
        raise click.BadParameter(str(wrong)) from None


# --- list --------------------------------------------------------------------------------------


@verb(
    click.option(
        "--state",
        callback=_state,
        default="NDLV",
        metavar="[NDLV|FAIL|DLNG|TBDL]",
        help="NDLV in quarantine (default), FAIL given up, DLNG running, TBDL waiting with a history.",
    ),
    click.option("--candidates", is_flag=True, help="Messages flagged as candidates instead."),
    *filter_options,
    limit_option,
    click.option("--offset", type=click.IntRange(0), default=0, help="Skip so many first."),
    json_option,
    name="list",
)
def list_(
    ctx: click.Context, state: State, candidates: bool, filters: Sequence[str], limit: int | None, offset: int
) -> None:
    """List messages, newest first; by default those in quarantine.

    Fields of --filter: id, mid, task, queue, group, cause, arguments, fingerprint, worker, incident, where,
    reason (text, with * and ?); deliveries, deaths (crashes), strikes, failures, size (payload_bytes),
    releases_left, age (numbers; ages in s, m, h, d).

    \b
    celery -A proj poison list
    celery -A proj poison list --filter 'task=shop.* age>2h'
    celery -A proj poison list --state FAIL --limit 20 --json
    """
    where = Filter.parse(*filters) if filters else None
    shown = limit if wants_json() or limit else ROWS
    quarantine = open_quarantine(ctx)
    beyond = None if shown is None else shown + 1
    records = quarantine.list(state=state, candidates=candidates, where=where, limit=beyond, offset=offset)
    page = records[:shown]
    what = "candidates" if candidates else f"messages in state {state}" if state is not State.NDLV else ""
    empty = "" if page else _nothing(quarantine, what or "messages in quarantine", filters)
    title = f"{count_of(len(page), 'message')}{' shown' if len(records) > len(page) else ''}"
    title += f" {_LISTED[state]}, the newest first" if not candidates else " flagged as candidates"
    shown_id = argument(short(page[0].id)) if page else ""
    hint = f"next: {command(f'poison show {shown_id}')}"
    answer_records(page, quarantine.queries.now_ms() / 1000, empty, title=title, hint=hint)
    if len(records) > len(page) and not wants_json():
        click.echo(f"there are more: --offset {offset + len(page)} shows the next", err=True)


#: State -> where listed messages are, in the line above them.
_LISTED = {
    State.NDLV: "in quarantine",
    State.FAIL: "given up",
    State.DLNG: "running",
    State.TBDL: "waiting, with a history",
}


def _nothing(quarantine: Quarantine, what: str, filters: Sequence[str]) -> str:
    """Return what is said where nothing was found; a ledger that no worker uses is a likely reason."""
    if not quarantine.check_owner():
        return f"nothing: no worker has used this ledger so far; see {command('poison status')}"
    if filters:
        return f"no {what} match {' '.join(filters)!r}; without --filter there may be others"
    parked = quarantine.queries.totals()["parked"] if what != f"messages in state {State.TBDL}" else 0
    waits = f"; {parked} wait in the ledger: {command('poison list --state TBDL')}" if parked else ""
    return f"no {what}{waits}"


# --- groups ------------------------------------------------------------------------------------


@verb(
    click.option(
        "--by",
        type=click.Choice([by.value for by in By], case_sensitive=False),
        default=By.CAUSE.value,
        show_default=True,
        help="cause: task and cause. fingerprint: task, cause and arguments.",
    ),
    *filter_options,
    limit_option,
    json_option,
)
def groups(ctx: click.Context, by: str, filters: Sequence[str], limit: int | None) -> None:
    """Count messages in quarantine by cause and task, the largest group first.

    Kept failures (poison_keep_failures) also differ by their exception. RELAPSED counts messages that were
    released and came back. Release, fail and discard take a group's id.

    \b
    celery -A proj poison groups
    celery -A proj poison release --group GROUP --dry-run
    """
    where = Filter.parse(*filters) if filters else Filter()
    quarantine = open_quarantine(ctx)
    page, total = quarantine.finder.groups(where, By(by), limit or (0 if wants_json() else ROWS))
    now = quarantine.queries.now_ms() / 1000
    fine = by == By.FINGERPRINT
    headings = ["CAUSE", "TASK", "MESSAGES", "RELAPSED", "OLDEST", "NEWEST", "GROUP"]
    if fine:
        headings.insert(6, "FINGERPRINT")

    raised = {id: f"{causes.FAILURE}: {name}" for id, name in quarantine.finder.raised(page).items()}

    def row(group: Group) -> Sequence[object]:
        cells = [
            raised.get(group.group) or causes.short(group.cause) or "-",
            group.task,
            group.count,
            group.relapsed,
        ]
        cells += [duration(now - group.first_seen), duration(now - group.last_seen)]
        return [*cells, group.fingerprint or "-", group.group] if fine else [*cells, group.group]

    empty = "" if page else _nothing(quarantine, "messages in quarantine", filters)
    whole = sum(group.count for group in page)
    title = f"{count_of(whole, 'message')} in quarantine, in {count_of(len(page), 'group')}"
    hint = f"next: {command(f'poison list --filter group={page[0].group}')}" if page else ""
    answer_table(page, headings, row, empty, fit=True, title=title, hint=hint)
    if total > len(page) and not wants_json():
        click.echo(f"there are {total} groups: --limit shows more of them", err=True)
