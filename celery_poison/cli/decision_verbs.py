"""``celery poison release | fail | discard | restore``: a person's decisions."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import click

from celery_poison.basics.text import count_of
from celery_poison.cli.command import (
    REFUSED,
    Option,
    filter_options,
    json_option,
    open_quarantine,
    seconds,
    verb,
    who_options,
)
from celery_poison.cli.output import answer_records, print_json, progress, say, wants_json
from celery_poison.desk import Care, Quarantine
from celery_poison.desk.care import SOAK
from celery_poison.desk.decisions import Chosen, Outcome
from celery_poison.desk.lookup import Lookup
from celery_poison.desk.search import UNITS, Filter
from celery_poison.errors import IllegalTransition, MessageNotFound, PoisonError
from celery_poison.model import MessageRecord
from celery_poison.states import State


def past(verb: str) -> str:
    """Return the past tense of a verb: released, failed."""
    return verb + ("d" if verb.endswith("e") else "ed")


def choosing(those: str, where: str) -> tuple[Option, ...]:
    """Return the four ways to say which messages; :class:`TypedAct` takes them."""
    return (
        click.argument("ids", nargs=-1, metavar="[ID]..."),
        *filter_options,
        click.option("--group", metavar="GROUP", default="", help=f"{those} of one group; see groups."),
        click.option("--all", "everything", is_flag=True, help=f"Everything {where}."),
    )


act_options = (
    click.option("--dry-run", is_flag=True, help="Only show which messages this would touch."),
    click.option("--yes", is_flag=True, help="Do not ask before touching more than one message."),
    *who_options,
    json_option,
)
of_quarantine = choosing("Every message", "in quarantine")
_OPTIONS = (*of_quarantine, *act_options)


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedAct:
    """An act as a person typed it.

    Attributes:
        state: where the messages are that the act is for.
        resolution: of those that were given up only these, where no ids were typed.
        older_than: and only what was given up so many seconds ago.
    """

    ids: Sequence[str]
    filters: Sequence[str]
    group: str
    everything: bool
    dry_run: bool = False
    yes: bool = False
    note: str = ""
    actor: str = ""
    state: State = State.NDLV
    resolution: str = ""
    older_than: float = 0.0

    def __post_init__(self) -> None:
        if sum(map(bool, (self.ids, self.filters, self.group, self.everything))) != 1:
            raise click.UsageError(
                "say which messages: their ids, or --filter or --since, or --group, or --all"
            )

    @property
    def words(self) -> str:
        """The words that were typed instead of ids."""
        words = ["--all"] if self.everything else ["--group", self.group] if self.group else []
        words += [word for each in self.filters for word in ("--filter", each)]
        return shlex.join([*words, *(["--older-than", f"{self.older_than:.0f}s"] if self.older_than else [])])

    def select(self, quarantine: Quarantine) -> list[MessageRecord]:
        """Return the matching messages, where no ids were typed."""
        where = Filter.of_group(self.group) if self.group else Filter.parse(*self.filters)
        records, resolution = quarantine.list(state=self.state, where=where), self.resolution
        if self.older_than:
            latest = quarantine.queries.now_ms() / 1000 - self.older_than
            records = [record for record in records if (record.last_seen or 0.0) <= latest]
        return [record for record in records if resolution in ("", record.resolution)]


# --- release with care (NEW-6) --------------------------------------------------------------------

#: Messages that are refused for the same reason and named one by one.
_REFUSALS_NAMED = 5


def per_second(ctx: click.Context, parameter: click.Parameter, typed: str | None) -> float | None:
    """Read ``10/s`` or ``30/m``."""
    if typed is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)/(s|m)", typed)
    if found is None or not float(found[1]):
        raise click.BadParameter(f"{typed!r}: write a number per second or minute, for example 10/s or 30/m")
    return float(found[1]) / UNITS[found[2]]


careful_options: tuple[Option, ...] = (
    click.option("--canary", is_flag=True, help="One first; the others only if it is well after --soak."),
    click.option("--soak", metavar="TIME", callback=seconds, help="With --canary: 90s, 15m. Default: 60s."),
    click.option("--rate", metavar="N/s|N/m", callback=per_second, help="So many per second, or minute."),
    click.option(
        "--max-waiting",
        type=click.IntRange(1),
        metavar="N",
        help="Pause while so many wait in the queue, or so many released ones have not ended.",
    ),
    click.option("--keep-going", is_flag=True, help="Go on after a released message has died again."),
    click.option(
        "--keep-counts",
        is_flag=True,
        help="Count strikes and failures on, not from 0; old ones convict no more.",
    ),
    click.option(
        "--keep-expiry",
        is_flag=True,
        help="Refuse what has expired. Default: it leaves without its expiry, and runs.",
    ),
    click.option("--after", metavar="TIME", callback=seconds, help="Later, by the active monitor: 10m, 1h."),
    click.option(
        "--times",
        type=click.IntRange(1),
        metavar="N",
        help="With --after: again when it comes back, N times in all.",
    ),
    click.option("--cancel", is_flag=True, help="Undo --after: it stays until a person decides."),
    click.option("--to", metavar="QUEUE", default="", help="To this queue, not to their own."),
)


yes_run_again: Option = click.option(
    "--yes-run-again", is_flag=True, help="Also what has begun once and whose task says rerun=False."
)

#: What a release by the monitor cannot be.
_BY_HAND = ("canary", "soak", "rate", "max_waiting", "keep_going", "keep_counts", "keep_expiry", "to")


def _how(options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Take out of ``options`` how to release; return the act, and its arguments."""
    after, times, cancel = (options.pop(name) for name in ("after", "times", "cancel"))
    may = {name: options.pop(name) for name in ("force", "yes_run_again")}
    by_hand = {name: options.pop(name) for name in _BY_HAND}
    if after or cancel:
        without = [f"--{name.replace('_', '-')}" for name, typed in by_hand.items() if typed]
        if without or (after and cancel):
            typed = "--cancel takes --after back" if cancel else "--after leaves the release to the monitor"
            raise click.UsageError(f"{typed}: use it without {', '.join(without) or '--after'}")
        return ("unschedule", {}) if cancel else ("schedule", {"after": after, "times": times or 1, **may})
    if times:
        raise click.UsageError("--times says how often --after is repeated: add --after")
    canary, soak, rate, max_waiting, keep_going, keep_counts, keep_expiry, to = by_hand.values()
    if soak and not canary:
        raise click.UsageError("--soak says for how long a --canary is watched: add --canary")
    care = Care(
        canary=canary, soak=soak or SOAK, rate=rate, max_waiting=max_waiting, stop_on_death=not keep_going
    )
    on_progress = partial(say, err=True) if care.takes_time else None
    more = {"to": to, "care": care, "on_progress": on_progress, **may}
    more |= {"keep_counts": keep_counts, "keep_expiry": keep_expiry}
    return "release", more


@verb(
    *_OPTIONS,
    *careful_options,
    click.option(
        "--force",
        is_flag=True,
        help="Even if this app does not know the task, or the queue of --to, or its chord has expired.",
    ),
    yes_run_again,
)
def release(ctx: click.Context, **options: Any) -> None:
    """Put messages back into their own queues, byte for byte as they were sent.

    A released message runs alone and on probation: one more death brings it straight back, and ends the
    release, unless --keep-going. Typed again, the command goes on with what is still in quarantine.

    \b
    celery -A proj poison release ID --note "fixed in 1.2.3"
    celery -A proj poison release --filter 'task=shop.render age<2h' --dry-run
    celery -A proj poison release --group GROUP --canary --soak 5m --rate 10/s --yes
    celery -A proj poison release --group GROUP --after 1h --times 3 --note "their API is down"
    """
    act, more = _how(options)
    carry_out(ctx, act, TypedAct(**options), **more)


@verb(
    *_OPTIONS,
    click.option(
        "--force",
        is_flag=True,
        help="Even if the body is not JSON: chord, chain and errbacks then get nothing.",
    ),
)
def fail(ctx: click.Context, force: bool, **options: Any) -> None:
    """Give messages up: their callers, chords and errbacks get a failure.

    \b
    celery -A proj poison fail ID --note "customer is gone"
    celery -A proj poison fail --filter 'cause=oom age>7d' --yes
    """
    carry_out(ctx, "fail", TypedAct(**options), force=force)


@verb(*_OPTIONS)
def discard(ctx: click.Context, **options: Any) -> None:
    """Give messages up without a report. A caller, if any, waits on: see fail.

    Restore brings them back, until purge.

    \b
    celery -A proj poison discard ID --note "sent by mistake"
    """
    carry_out(ctx, "discard", TypedAct(**options))


@verb(
    *choosing("Those", "that was discarded"),
    *act_options,
    click.option("--force", is_flag=True, help="Those named by id, even if they were failed or edited."),
)
def restore(ctx: click.Context, force: bool, **options: Any) -> None:
    """Bring discarded messages back into quarantine, with their history, causes and counts.

    Without --force a failed message is refused, since its caller already has the failure; so is an edited
    one, since both it and its copy may then run.

    \b
    celery -A proj poison restore ID --note "we need it after all"
    """
    carry_out(ctx, "restore", TypedAct(**options, state=State.FAIL, resolution="discarded"), force=force)


def carry_out(ctx: click.Context, verb: str, order: TypedAct, **more: Any) -> None:
    """Do it, or show what it would be done to; say what became of each message."""
    quarantine = open_quarantine(ctx)
    if order.dry_run:
        ctx.exit(_rehearse(quarantine, verb, order))
    ids = chosen(quarantine, verb, order)
    outcomes: list[Outcome] = []
    act = getattr(quarantine, verb)
    try:
        # Lines and a bar would write over each other.
        with progress(0 if more.get("on_progress") else len(ids)) as step:

            def hear(outcome: Outcome) -> None:
                outcomes.append(outcome)
                step()

            act(ids, actor=order.actor, note=order.note, **more, on_outcome=hear)
    finally:
        # Also after Ctrl-C or a lost Redis: what was done is done, and is said.
        _report(verb, outcomes)
    if not outcomes and not wants_json():
        click.echo("nothing matched", err=True)
    if not outcomes or not all(outcome.done for outcome in outcomes):
        ctx.exit(REFUSED)


def chosen(quarantine: Quarantine, verb: str, order: TypedAct) -> Sequence[str]:
    """Return whom the act is for; more than a person has named one by one must be confirmed."""
    if order.ids:
        lookup = Lookup(quarantine.queries)
        return list(dict.fromkeys(_whole(lookup, id) for id in order.ids))
    mids = Chosen((record.mid for record in order.select(quarantine)), order.words)
    if len(mids) > 1 and not order.yes:
        messages = count_of(len(mids), "message")
        if wants_json() or not sys.stdin.isatty():
            raise click.UsageError(
                f"{messages} match: add --yes to {verb} them all, or --dry-run to see them"
            )
        click.confirm(f"{verb.capitalize()} {messages}?", abort=True, err=True)
    return mids


def _whole(lookup: Lookup, typed: str) -> str:
    """Return the mid of what was typed; where there is no such message, the act says so."""
    with suppress(MessageNotFound):
        return lookup.find(typed).mid
    return typed


def _rehearse(quarantine: Quarantine, verb: str, order: TypedAct) -> int:
    records, refusals = [] if order.ids else order.select(quarantine), []
    for id in dict.fromkeys(order.ids):
        try:
            record = quarantine.get(id)
            if record.state != order.state:
                wanted = "in quarantine" if order.state is State.NDLV else "given up"
                raise IllegalTransition(f"{id}: the message is in state {record.state}, not {wanted}")
            records.append(record)
        except PoisonError as error:
            refusals.append(str(error))
    answer_records(records, quarantine.queries.now_ms() / 1000, "nothing matches")
    if not wants_json():
        click.echo(f"{count_of(len(records), 'message')} would be {past(verb)}", err=True)
    for refusal in refusals:
        say(refusal, err=True)
    return REFUSED if refusals or not records else 0


def _report(verb: str, outcomes: Sequence[Outcome]) -> None:
    if wants_json():
        print_json([outcome.as_dict() for outcome in outcomes])
        return
    for outcome in outcomes:
        if outcome.done:
            say(f"{past(verb)}  {outcome.id}  {outcome.task}")
    say_refusals(outcomes)
    if not outcomes:
        return
    refused = sum(not outcome.done for outcome in outcomes)
    summary = f"{count_of(len(outcomes) - refused, 'message')} {past(verb)}"
    click.echo(summary + (f", {refused} refused" if refused else ""), err=True)


def say_refusals(outcomes: Iterable[Outcome]) -> None:
    """Say on stderr who was refused and why; of very many for one reason only how many."""
    refused: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        if not outcome.done:
            refused.setdefault(outcome.error, []).append(outcome)
    for error, those in refused.items():
        if len(those) > _REFUSALS_NAMED:
            say(f"refused  {count_of(len(those), 'message')}: {error}", err=True)
            continue
        for outcome in those:
            say(f"refused  {f'{outcome.id}  {outcome.task}'.strip()}: {error}", err=True)
