"""Messages in quarantine as the lines of a file, to and from another environment.

A line is a JSON object; its body is in base64, as received, and never decoded here.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from celery_poison import causes
from celery_poison.basics.numbers import DIGITS, is_whole
from celery_poison.desk.decisions import Listener, Outcome, Outcomes, report_each, several
from celery_poison.desk.evidence import sentence_of
from celery_poison.desk.lookup import Lookup
from celery_poison.desk.owner import default_actor
from celery_poison.desk.store import Store, require_body
from celery_poison.errors import IllegalTransition, PoisonError
from celery_poison.keep.arguments import fingerprint_of_copy
from celery_poison.keep.exported import COUNTS, FIELDS, JSON, NAMES, VERSION, line_of
from celery_poison.keep.stored_message import stored_message, word
from celery_poison.states import State

_NEEDED = ("id", "mid", "queue", "cause", "content_type", "content_encoding", "headers", "properties")


class BadExport(PoisonError):
    """A line is none that ``export`` has written; nothing of it was imported."""


class Lines:
    """Export and import. Raises, ``actor`` and ``note`` as of ``Quarantine``."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def export(self, ids: Iterable[str]) -> Iterator[str]:
        """Yield messages in quarantine as lines of JSON, each with its body; changes nothing.

        Raises:
            MessageNotFound, AmbiguousId: as :meth:`get`.
            IllegalTransition: it is not in quarantine, or its body is at its named destination.
        """
        lookup = Lookup(self._store.queries)
        for id in several(ids):
            record = lookup.find(id, whole=True)
            if record.state != State.NDLV:
                raise IllegalTransition(f"message {id!r} is in state {record.state}, not in quarantine")
            yield line_of(require_body(self._store.row(record.mid)))

    def import_(
        self, lines: Iterable[str], *, actor: str = "", note: str = "", on_outcome: Listener | None = None
    ) -> Outcomes:
        """Put exported messages into this quarantine (NDLV); the same line twice is one message.

        A message that is here, or was imported within 30 days, is left as it is: its outcome says so, and is
        ``done``. A line that cannot be imported has the reason as its outcome; the others go on.

        Args:
            lines: as :meth:`export` yields them; import only what you trust as you trust your broker.
        """
        self._store.check_owner()
        return report_each(self._import_each(lines, actor, note), on_outcome)

    def _import_each(self, lines: Iterable[str], actor: str, note: str) -> Iterator[Outcome]:
        actor, noted = actor or default_actor(), f"imported: {note}" if note else "imported"
        secret = self._store.queries.fingerprint_secret()
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                fields = fields_of_line(line)
            except BadExport as error:
                yield Outcome(mid="", id=f"line {number}", task="", done=False, error=str(error))
                continue
            mid, id, task = (str(fields[name]) for name in ("mid", "id", "task"))
            self._fingerprint(fields, secret)
            new = self._store.ledger.decisions.import_message(mid, id, fields, actor=actor, note=noted)
            known = "" if new else "it is here, or was imported before"
            yield Outcome(mid=mid, id=id, task=task, done=True, error=known)

    def _fingerprint(self, fields: dict[str, str | bytes | int], secret: bytes) -> None:
        """Make its fingerprint that of this ledger: the other one had another key."""
        if fields["cause"] == causes.FAILURE:
            return  # made of where it was raised, without a key
        raw = {name: value for name, value in fields.items() if isinstance(value, bytes)}
        fields["fingerprint"] = fingerprint_of_copy(stored_message(raw), str(fields["task"]), secret, None)


def fields_of_line(line: str) -> dict[str, str | bytes | int]:
    """Return the fields of the message on one line.

    Raises:
        BadExport: it is none of an export, in a sentence.
    """
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadExport(f"it is no JSON: {error}") from None
    if not isinstance(found, dict) or found.get("v") != VERSION or "body_base64" not in found:
        raise BadExport(f"it is no line of `poison export`, or of another version than {VERSION}")
    fields = {name: found[name] for name in FIELDS if name in found}
    for name, value in fields.items():
        if not isinstance(value, str):
            raise BadExport(f"{name} is no text")
    _check(fields)
    try:
        body = base64.b64decode(found["body_base64"], validate=True)
        packed = {name: value.encode("utf-8", "surrogateescape") for name, value in fields.items()}
    except (TypeError, ValueError, binascii.Error):
        raise BadExport("its body is no base64, or a field no text") from None
    names = {name: fields.get(name, "") for name in (*NAMES, "cause")}
    return {**packed, **names, "body": body, "payload_bytes": len(body)}


def _check(fields: Mapping[str, str]) -> None:
    for name in _NEEDED:
        if name not in fields:
            raise BadExport(f"{name} is missing")
    for name in (*NAMES, "cause"):
        value = fields.get(name, "")
        if value != word(value) or not (value or name == "task"):
            raise BadExport(f"{name} is empty, longer than 255 characters, or not printable")
    for name in COUNTS:
        if fields.get(name) and not (is_whole(fields[name]) and fields[name].isdecimal()):
            raise BadExport(f"{name} is no number of at most {DIGITS} digits")
    for name in JSON:
        if fields.get(name):
            _check_json(name, fields[name])
    _check_evidence(fields.get("evidence", ""))


def _check_evidence(text: str) -> None:
    try:
        evidence = causes.Evidence.decode(text)
        sentence_of(evidence)
        stated = json.loads(text or "{}")
    except Exception:
        raise BadExport("evidence is none") from None
    # What cannot be is left out by those who read it: here its line is refused.
    read = evidence.as_dict() | {"stack": [*evidence.stack]}
    for name, value in stated.items():
        if name in evidence.__dataclass_fields__ and value and read.get(name) != value:
            raise BadExport("evidence is none")


def _check_json(name: str, text: str) -> None:
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        raise BadExport(f"{name} is no JSON") from None
    if not isinstance(value, dict):
        raise BadExport(f"{name} is no JSON object")
