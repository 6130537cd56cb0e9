"""A message's life in sentences: what is known about it, why it is where it is, what the journal says."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence

from celery_poison.basics.rooms import rooms_with
from celery_poison.basics.text import clean, count_of, when
from celery_poison.causes import (
    FAILURE,
    NEVER_BEGAN,
    OF_WORKERS,
    SYSTEM_EXIT,
    TIME_LIMIT,
    UNKNOWN_TASK,
    Evidence,
    describe,
    signal_name,
)
from celery_poison.desk.evidence import sentence_of
from celery_poison.desk.own_deaths import Death, comparison
from celery_poison.model import MessageRecord
from celery_poison.rules.destinations import where_sent
from celery_poison.rules.failures import KeptFailure
from celery_poison.states import Event, State

Entry = Mapping[str, str]


STANDING = {
    "NDLV": "In quarantine.",
    "FAIL": "Given up.",
    "TBDL": "Waits in its queue.",
    "DLNG": "Runs at this moment.",
    "DLVD": "It has ended; only the journal remembers it.",
}

#: How the reason of a message begins that waits in the ledger (``ledger/views.py``).
_PARKED = ("parked ", "put back, and parked ")

#: Outcome of a finished start -> how it ended.
_ENDS = {
    "success": "it ended well",
    "failure": "it ended with an error, which its caller got",
    "retry": "it asked for a retry, which is a message of its own",
    "lost": "its message was acknowledged although its task did not end",
    "": "it ended alive",
}


def is_parked(record: MessageRecord) -> bool:
    """Whether a message waits in the ledger, and not with the broker."""
    return record.state == State.TBDL and record.reason.startswith(_PARKED)


def standing(record: MessageRecord) -> str:
    """Return where a message is, as a sentence."""
    return "Waits in the ledger." if is_parked(record) else STANDING.get(record.state, "")


def starts_of(record: MessageRecord) -> int:
    """Return how often a message has begun; a delivery that was kept from that counts as none."""
    has_history = record.deliveries > 1 or record.crashes or record.failures or record.releases
    is_kept_back = is_parked(record) if record.state == State.TBDL else record.cause in NEVER_BEGAN
    return 0 if is_kept_back and not has_history else record.deliveries


def how_it_ended(history: Sequence[Entry]) -> str:
    """Return how a message ended that only the journal remembers, and whether it had been released."""
    events = [entry["event"] for entry in history]
    if not {Event.FINISHED, Event.CLEARED} & set(events):
        return ""
    outcome = next((e["outcome"] for e in reversed(history) if e["event"] == Event.FINISHED), "")
    end = _ENDS.get(outcome, f"it ended: {outcome}")
    if Event.RELEASED not in events:
        return f"{end[0].upper()}{end[1:]}."
    released = history[len(events) - 1 - events[::-1].index(Event.RELEASED)]
    return (
        f"It was released by {clean(released['actor']) or 'a person'}{clean(note_of(released))}; then {end}."
    )


def why(record: MessageRecord, deaths: Sequence[Death] = (), *, observe_only: bool = False) -> str:
    """Return in plain language what happened to a message, or would have happened.

    Args:
        deaths: those of the journal, oldest first.
    """
    sentences = []
    if record.cause:
        sentences.append(f"It {describe(record.cause)}.")
    if record.crashes or record.cause == FAILURE:
        sentences += [clean(sentence_of(record.evidence)), clean(comparison(deaths)), _not_on_record(record)]
    sentences.append(_deaths(record))
    if record.failures and not (record.cause == TIME_LIMIT and record.failures == record.crashes):
        sentences.append(f"It has {count_of(record.failures, 'failure')}.")
    if record.releases and record.state == State.NDLV:
        sentences.append(f"It was released {_times(record.releases)}, and came back.")
    if record.cause == UNKNOWN_TASK and (known := record.reason.rpartition("; ")[2]).startswith("known to "):
        sentences.append(f"It is {clean(known)}.")
    if record.reason and describe(record.cause) not in record.reason:
        what = "Now" if record.candidate and record.state in ("TBDL", "DLNG") else "Reason"
        sentences.append(f"{what}: {clean(record.reason)}.")
    if record.not_rerun and record.state == State.NDLV:
        sentences.append("It has begun once, and its task says rerun=False: a release asks.")
    if record.told:
        sentences.append("Its caller has the failure already.")
    sentences += _standing(record, observe_only)
    return " ".join(filter(None, sentences))


def _not_on_record(record: MessageRecord) -> str:
    """Return a sentence on missing evidence: why a process ended by itself."""
    if record.cause.startswith("exit:") and not record.evidence.stack:
        return (
            "Its place is not on record: the task, or a library, ended the process by itself, as os._exit"
            " does, which leaves no stack."
        )
    if record.cause == SYSTEM_EXIT:
        return "Its argument to sys.exit() is not on record; the log of its worker may have it."
    return ""


def _deaths(record: MessageRecord) -> str:
    """Return how many processes it has killed; where others may be to blame, at how many deaths it ran."""
    if record.strikes < record.crashes or record.cause in OF_WORKERS:
        ran = f"It was running at {count_of(record.crashes, 'death')}"
        return f"{ran}, {count_of(record.strikes, 'strike')}." if record.crashes else ""
    # Of one alone the cause has been named already.
    return f"Killed {count_of(record.crashes, 'process')}." if record.crashes > 1 else ""


_SUSPECTED = "It is a candidate: it runs alone, and one more death may convict it."
_OBSERVED = "It is only observed (poison_observe_only): it goes on as in plain Celery."


def _standing(record: MessageRecord, observe_only: bool) -> Iterator[str]:
    if record.resolution:
        note = f" ({clean(record.note)})" if record.note else ""
        yield f"{record.resolution.capitalize()} by {clean(record.actor) or 'a person'}{note}."
    elif record.state == State.NDLV and record.sent_at:
        yield where_sent(record.destination)
    elif record.state == State.NDLV and record.destination:
        yield f"It goes to the queue {clean(record.destination)} as soon as the broker takes it there."
    elif record.state == State.NDLV and record.retry_at:
        scheduled = ""
        if record.releases_left:
            note = f" ({clean(record.note)})" if record.note else ""
            by = f"as {clean(record.actor)} has scheduled{note}"
            scheduled = f", {_times(record.releases_left)} at most, {by}"
        yield f"It goes back to its queue by itself at {when(record.retry_at)}{scheduled}."
    elif record.probation:
        yield "It was released: one more death brings it straight back."
    elif record.candidate and record.state in ("TBDL", "DLNG"):
        yield _OBSERVED if observe_only else _SUSPECTED
    if record.edited_to:
        yield f"Its changed copy is {clean(record.edited_to)}."
    if record.edited_from:
        yield f"It is a changed copy of {clean(record.edited_from)}."


def failure_rows(failure: KeptFailure | None) -> list[tuple[str, Sequence[tuple[str, str]]]]:
    """Return title -> rows about what the attempts of a message raised; [] where nothing is kept of that."""
    if failure is None:
        return []
    raised = [(failure.exception, clean(failure.message))]
    trace = [("", clean(line)) for line in failure.traceback.splitlines()]
    earlier = [
        (attempt.exception, clean(f"{attempt.message}; in {attempt.source}")) for attempt in failure.earlier
    ]
    return [("raised", raised), ("earlier attempts, oldest first", earlier), ("traceback", trace)]


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def at(entry: Entry) -> str:
    """Return when an entry was written, by Redis' clock, in local time."""
    return when(int(entry["at"].partition("-")[0]) / 1000)


def by_event() -> Mapping[str, Callable[[Entry], str]]:
    """Return the functions that word an entry as a sentence, one for each event of docs/journal.md."""
    return ChainMap(_SENTENCES, *(room.SENTENCES for room in rooms_with("sentences")))


def sentence(entry: Entry) -> str:
    """Return one journal entry as a sentence."""
    tell = by_event().get(entry.get("event", ""))
    return clean(tell(entry) if tell else entry.get("event", "?"))


def _crashed(entry: Entry) -> str:
    sentence = f"{describe(entry['cause'])} on {entry['worker']}{_after(entry)}"
    if entry["crashes"]:
        sentence += f": death {entry['crashes']}, strike {entry['strikes']}"
    if entry["outcome"] == "shared" and not entry["note"]:
        sentence += "; others may share the blame"
    return sentence + note_of(entry) + _proven(entry)


def _interrupted(entry: Entry) -> str:
    why = entry["cause"]
    if why.startswith("signal:"):  # those that it may be asked to end by; else the word itself says enough
        why = f"its process was ended by {signal_name(why[7:])}"
    return f"its run on {entry['worker']} was interrupted ({why}), without blame{_proven(entry)}"


def _proven(entry: Entry) -> str:
    found = sentence_of(Evidence.decode(entry.get("evidence", "")))
    return f". {found}" if found else ""


def _decided(what: str) -> Callable[[Entry], str]:
    return lambda entry: f"{what} by {entry['actor'] or 'a person'}{note_of(entry)}"


def _after(entry: Entry) -> str:
    if not entry["runtime_ms"].isdecimal():
        return ""
    if entry["incident"] and entry["runtime_ms"] == "0":
        return ""  # its whole worker died before it gave another sign of life
    least = "at least " if entry["incident"] else ""
    return f" after {least}{int(entry['runtime_ms']) / 1000:g} s"


def note_of(entry: Entry) -> str:
    return f": {entry['note']}" if entry["note"] else ""


def act_sentence(what: str, entry: Entry) -> str:
    by = f" by {entry['actor']}" if entry["actor"] else ""
    return f"{what}{by}: {entry['note']}"


def _copied(what: str, entry: Entry) -> str:
    # The note begins with the other one's mid, and in which direction.
    other, _, note = entry["note"].partition(": ")
    return f"{what} {other} by {entry['actor'] or 'a person'}{f': {note}' if note else ''}"


#: Of the core's events.
_SENTENCES: dict[str, Callable[[Entry], str]] = {
    "finished": lambda entry: (
        f"ended on {entry['worker']}{_after(entry)}: {entry['outcome'] or 'outcome unknown'}"
    ),
    "crashed": _crashed,
    "interrupted": _interrupted,
    "rolled_back": lambda entry: (
        f"was put back on {entry['worker']} ({entry['cause']}): failure {entry['failures']}"
    ),
    "cleared": lambda entry: f"ran alone on {entry['worker']} and survived: cleared",
    "duplicate": lambda entry: f"a copy was dropped at {entry['worker']}{note_of(entry)}",
    "quarantined": lambda entry: f"moved to quarantine{note_of(entry)}",
    "would_quarantine": lambda entry: f"would have been moved to quarantine{note_of(entry)}",
    "sent": lambda entry: f"sent {entry['note']}",
    "released": _decided("released"),
    "release_scheduled": _decided("release scheduled"),
    "release_unscheduled": _decided("release unscheduled"),
    "failed": _decided("failed"),
    "discarded": _decided("discarded"),
    "edited": lambda entry: _copied("edited", entry),
    "copied": lambda entry: _copied("copied", entry),
    "restored": _decided("restored to quarantine"),
    "purged": _decided("deleted for good"),
    "policy_changed": lambda entry: (
        f"policy of {entry['task']} changed by {entry['actor'] or 'a person'}{note_of(entry)}"
    ),
    "blocked": lambda entry: act_sentence("blocked", entry),
    "unblocked": lambda entry: act_sentence("unblocked", entry),
    "worker_lost": lambda entry: f"worker {entry['worker']} died ({entry['cause']}){_proven(entry)}",
    "act_asked_for": lambda entry: act_sentence("asked for, and not done yet", entry),
    "act_agreed_to": lambda entry: act_sentence("agreed to", entry),
    "gate_closed": lambda entry: f"the fleet gate closed: {entry['note']}; only a death on trial convicts",
    "gate_lifted": lambda entry: f"the fleet gate was lifted by {entry['actor'] or 'itself'}{note_of(entry)}",
    "failover_finished": lambda entry: f"cleaned up after worker {entry['worker']}{note_of(entry)}",
    "worker_started": lambda entry: f"worker {entry['worker']} started {entry['note']}".rstrip(),
    "worker_stopped": lambda entry: f"worker {entry['worker']} stopped",
    "monitor_changed": lambda entry: f"worker {entry['worker']} watches the others now",
}
