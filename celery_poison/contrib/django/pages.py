"""What Django's admin shows of the quarantine, and does: what :class:`Quarantine` gives, no more.

Each page is a method; the admin has let the visitor in before (staff), and checks forged requests (CSRF).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from http import HTTPStatus
from itertools import islice
from threading import Lock
from typing import Any, NamedTuple
from urllib.parse import urlencode

from celery import Celery
from django.contrib import messages as notes
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse

from celery_poison import causes
from celery_poison.basics.text import clean, count_of, duration, span
from celery_poison.contrib.django.models import ACT, READ
from celery_poison.contrib.django.records import LONGEST, is_editable, row_of, sections_of
from celery_poison.desk import Quarantine, sentences
from celery_poison.desk.advice import decision
from celery_poison.desk.decisions import IN_DJANGO, Chosen, Outcome
from celery_poison.desk.edits import call_of, typed_json, typing_of
from celery_poison.desk.own_deaths import place_of
from celery_poison.desk.search import BadFilter, By, Filter
from celery_poison.errors import (
    ConfigurationError,
    LedgerUnavailable,
    MessageNotFound,
    PoisonError,
    SecondPersonNeeded,
)
from celery_poison.ledger.second_person import wishes
from celery_poison.plugin import plugin_of
from celery_poison.states import State

#: Rows of a list; messages of one act: each is named in its form; refusals that are named one by one.
ROWS, MOST, REFUSALS = 50, 500, 10
#: Requests for a second person that are shown.
_WISHES = 20

_FORCED = "even if this app has no task of that name, or its chord has expired"
_RUN_AGAIN = "also what has begun once and must not run twice (rerun=False)"


class Verb(NamedTuple):
    """One act on messages in quarantine.

    Attributes:
        does: one sentence; ``done``: a word for what has been acted on.
        choices: name -> sentence, of what may be switched on.
    """

    does: str
    done: str
    choices: Mapping[str, str]


VERBS = {
    "release": Verb(
        "They go back to their queues as they were received. Each runs alone; one more death brings it back.",
        "released",
        {"force": _FORCED, "yes_run_again": _RUN_AGAIN},
    ),
    "fail": Verb(
        "They are given up: callers get a failure; chords and errbacks hear of it.",
        "failed",
        {"force": "even if a body is not JSON: then chord, chain and errbacks hear nothing"},
    ),
    "discard": Verb("They are given up without a report: callers wait in vain.", "discarded", {}),
}

Page = Callable[["Pages", HttpRequest], HttpResponse]


def _readable(page: Any) -> Any:
    """Let in who may read, and answer each error of ours by a page with its sentence."""

    @wraps(page)
    def answer(self: Pages, request: HttpRequest, **words: str) -> HttpResponse:
        if not request.user.has_perm(READ):
            raise PermissionDenied
        try:
            return page(self, request, **words)
        except PoisonError as error:
            return self._shown(request, "problem", status=_status_of(error), title="Poison", error=error)

    return answer


def _acting(request: HttpRequest) -> None:
    if not request.user.has_perm(ACT):
        raise PermissionDenied


class Pages:
    """The pages of one admin site.

    Args:
        app: the Celery app whose quarantine it is.
    """

    def __init__(self, site: Any, app: Celery) -> None:
        self._site, self._app = site, app
        self._opening, self._is_mine = Lock(), False
        self._quarantine: Quarantine | None = None

    def _open(self) -> Quarantine:
        """Return the quarantine, once it is sure that the ledger is this app's; raises as ``Quarantine``."""
        with self._opening:
            if self._app.main == "default":
                raise ConfigurationError(
                    "Django has loaded no Celery app: import it in your project's __init__.py, as Celery's"
                    " guide for Django does (from .celery import app)"
                )
            self._quarantine = quarantine = self._quarantine or Quarantine(self._app)
        # Asks Redis, which may be slow to answer: each visitor waits for his own answer alone.
        self._is_mine = self._is_mine or quarantine.check_owner()
        return quarantine

    @_readable
    def messages(self, request: HttpRequest) -> HttpResponse:
        """One page of what is in quarantine, or was given up; ``q`` is searched as in Flower."""
        state = State.FAIL if request.GET.get("state") == State.FAIL else State.NDLV
        text, offset, begin = (
            _typed(request.GET),
            _number(request, "offset"),
            _number(request, "begin"),
        )
        quarantine = self._open()
        page = quarantine.finder.page(_filter(text), state, rows=ROWS, offset=offset, begin=begin)
        asked = {"state": state.value, "q": text}
        # Where matches are not counted, the next page begins at a time.
        begun, left_out = page.begin if page.begin[0] else (0, offset + ROWS)
        now = quarantine.queries.now_ms() / 1000
        return self._shown(
            request,
            "list",
            title="Poison messages",
            rows=[row_of(record, now) for record in page.rows],
            total=page.total,
            state=state.value,
            text=text,
            first=offset + 1,
            last=offset + len(page.rows),
            newer=urlencode({**asked, "offset": max(0, offset - ROWS)}) if offset and not begin else "",
            older=urlencode({**asked, "offset": left_out, "begin": begun}) if page.more else "",
            wishes=self._wishes(now),
        )

    @_readable
    def groups(self, request: HttpRequest) -> HttpResponse:
        """Show the messages in quarantine, counted by task and cause."""
        quarantine = self._open()
        groups, now = quarantine.groups(by=By.CAUSE), quarantine.queries.now_ms() / 1000
        rows = [
            {
                "group": group.group,
                "task": clean(group.task),
                "cause": clean(causes.short(group.cause)),
                "count": group.count,
                "relapsed": group.relapsed or "",
                "last": duration(now - group.last_seen),
            }
            for group in groups
        ]
        return self._shown(request, "groups", title="Poison messages by task and cause", rows=rows)

    @_readable
    def message(self, request: HttpRequest) -> HttpResponse:
        """All that is on record of one message, but for its body."""
        quarantine = self._open()
        detail = quarantine.detail(request.GET.get("id", ""))
        record = detail.record
        return self._shown(
            request,
            "message",
            title=clean(record.task),
            mid=record.mid,
            kept=record.state == State.NDLV,
            editable=is_editable(detail),
            cause=clean(causes.short(record.cause)),
            place=clean(place_of(detail.deaths, record.evidence)),
            story=clean(f"{sentences.standing(record)} {detail.story}"),
            others=detail.others.sentence if detail.others else "",
            usual=decision(detail) if record.state == State.NDLV and not record.sent_at else "",
            sections=sections_of(detail),
            links=detail.links,
        )

    @_readable
    def act(self, request: HttpRequest, verb: str) -> HttpResponse:
        """Ask for the reason first, then do it, and say what became of each message."""
        _acting(request)
        if verb not in VERBS:
            raise Http404
        if request.method != "POST":
            return self._back()
        quarantine = self._open()
        ids, is_cut = _chosen(quarantine, request)
        if not ids:
            notes.warning(request, "Nothing was done: tick messages first.")
        elif "sure" not in request.POST:
            return self._confirm(request, quarantine, verb, ids, is_cut)
        else:
            how = {name: True for name in VERBS[verb].choices if request.POST.get(name) == "1"}
            note = request.POST.get("note", "")
            try:
                outcomes = getattr(quarantine, verb)(ids, actor=_actor(request), note=note, **how)
            except SecondPersonNeeded as needed:
                notes.warning(request, clean(needed))
            else:
                _tell(request, verb, outcomes)
        return self._back()

    @_readable
    def edit(self, request: HttpRequest) -> HttpResponse:
        """Release a changed copy of a message, or keep that in quarantine."""
        _acting(request)
        quarantine, posted = self._open(), request.POST
        record = quarantine.get(request.GET.get("id", ""))
        call = call_of(quarantine.message(record.mid))
        typed = {"args": typing_of(call.args), "kwargs": typing_of(call.kwargs), "queue": record.queue}
        error = ""
        if request.method == "POST":
            typed |= {name: posted.get(name, "") for name in typed}
            how = {name: posted.get(name) == "1" for name in ("hold", "force", "yes_run_again")}
            try:
                edited = quarantine.edit(
                    record.mid,
                    args=typed_json("args", typed["args"], list),
                    kwargs=typed_json("kwargs", typed["kwargs"], dict),
                    queue=typed["queue"].strip(),
                    actor=_actor(request),
                    note=posted.get("note", ""),
                    **how,
                )
                error = edited.error
            except ValueError as wrong:
                error = str(wrong)
            if not error:
                kept = "waits in quarantine" if how["hold"] else "is released"
                notes.success(request, f"The changed copy of {clean(record.id)} {kept}.")
                return self._back()
        title = f"Edit {clean(record.task)}"
        choices = {"hold": "keep the copy in quarantine", "force": _FORCED, "yes_run_again": _RUN_AGAIN}
        values: dict[str, Any] = {
            "mid": record.mid,
            "id": clean(record.id),
            "typed": typed,
            "error": clean(error),
        }
        return self._shown(request, "edit", title=title, choices=choices, **values)

    def _wishes(self, now: float) -> list[str]:
        """Return the requests for a second person, in sentences."""
        waiting = wishes(plugin_of(self._app).open_ledger())[:_WISHES]
        return [
            clean(f"{wish.story}. Within {span(wish.until - now)} {wish.how}")[:LONGEST] for wish in waiting
        ]

    def _confirm(
        self, request: HttpRequest, quarantine: Quarantine, verb: str, ids: Sequence[str], is_cut: bool
    ) -> HttpResponse:
        sample = quarantine.queries.records(ids[:ROWS])
        return self._shown(
            request,
            "confirm",
            title=f"{verb.capitalize()} {count_of(len(ids), 'message')}?",
            verb=verb,
            act=VERBS[verb],
            ids=ids,
            is_cut=is_cut,
            everything=isinstance(ids, Chosen),
            text=_typed(request.POST),
            rows=[f"{clean(record.task)}  {clean(record.id)}" for record in sample if record],
            unnamed=max(0, len(ids) - ROWS),
        )

    def _shown(self, request: HttpRequest, name: str, status: int = 200, **values: Any) -> HttpResponse:
        can_act = request.user.has_perm(ACT)
        context = {**self._site.each_context(request), "may_act": can_act, "verbs": VERBS, **values}
        return TemplateResponse(request, f"celery_poison/{name}.html", context, status=status)

    def _back(self) -> HttpResponse:
        name = "admin:celery_poison_poisonmessage_changelist"
        return HttpResponseRedirect(reverse(name, current_app=self._site.name))


def _typed(form: Any) -> str:
    """Return a filter, or words to search for; what turns or hides text is a ``?``, which matches it."""
    return "".join(letter if letter.isprintable() else "?" for letter in form.get("q", "").strip())


def _number(request: HttpRequest, name: str) -> int:
    text = request.GET.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 15 else 0


def _filter(text: str) -> Filter:
    return Filter.search(text) if text else Filter()


def _chosen(quarantine: Quarantine, request: HttpRequest) -> tuple[list[str], bool]:
    """Return the mids that a form names, or the newest that match ``q``; and whether there are others.

    Who was asked whether he is sure has seen which ones match. Of these only those that still do are meant: a
    second person agrees to the words of the search, not to what else a form names.
    """
    ids, text = request.POST.getlist("mid"), _typed(request.POST)
    everything = request.POST.get("everything") == "1"
    if everything:
        where, seen = _filter(text), {*ids} if "sure" in request.POST else set()
        matching = quarantine.finder.mids(where, State.NDLV, quarantine.finder.choose(State.NDLV, where))
        ids = [*islice((mid for mid in matching if not seen or mid in seen), MOST + 1)]
    if len(ids) > MOST:
        return ids[:MOST], True
    return Chosen.matching(ids, text) if everything else ids, False


def _tell(request: HttpRequest, verb: str, outcomes: Sequence[Outcome]) -> None:
    """Say what became of the messages; Django escapes what is said."""
    done = sum(outcome.done for outcome in outcomes)
    if done:
        notes.success(request, f"{count_of(done, 'message')} {VERBS[verb].done}.")
    refused = [outcome for outcome in outcomes if not outcome.done]
    for outcome in refused[:REFUSALS]:
        notes.warning(request, clean(f"{outcome.task} {outcome.id}: not {VERBS[verb].done}: {outcome.error}"))
    if (left := len(refused) - REFUSALS) > 0:
        notes.warning(request, f"{count_of(left, 'message')} more: not {VERBS[verb].done}.")


def _actor(request: HttpRequest) -> str:
    return f"{request.user.get_username()}{IN_DJANGO}"


def _status_of(error: PoisonError) -> int:
    if isinstance(error, LedgerUnavailable):
        return HTTPStatus.SERVICE_UNAVAILABLE
    if isinstance(error, MessageNotFound):
        return HTTPStatus.NOT_FOUND
    return HTTPStatus.BAD_REQUEST if isinstance(error, BadFilter) else HTTPStatus.CONFLICT
