"""Transitions of what was given up, or is given up for a changed copy; each is one atomic step."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Self

from celery_poison.errors import IllegalTransition
from celery_poison.ledger.connection import clear_errors
from celery_poison.ledger.scripts import Caller, Code
from celery_poison.model import Record
from celery_poison.text import count_of

#: How a message was given up -> why ``restore`` wants force.
WHY_FORCE = {
    "failed": (
        "it was failed: its caller has been told, its chord, chain and errbacks are resolved, and none of"
        " that can be taken back; use force to run it all the same"
    ),
    "edited": (
        "it was edited: its changed copy stands for it; use force to have the original too, and both may run"
    ),
}


class GivenUpTransitions(Caller):
    """What a person does about messages that were given up, and the edit that gives one up."""

    def discard_old(
        self,
        mid: str,
        *,
        id: str,
        task: str,
        queue: str,
        cause: str,
        reason: str,
        actor: str,
        size: int,
        list: str,
        payload: str | bytes,
        fields: Mapping[str, str | bytes | int],
    ) -> Code:
        """Put a message that waits in its queue on record as given up (FAIL): OK.

        DONE: it is on record so already, and may have been left in its queue. KEPT, HELD: not this one.

        Args:
            size: bytes of its body.
            list: of the broker, from which it is taken in the same step; empty where that is elsewhere.
            payload: as it lies there.
            fields: of the original message.
        """
        told: dict[str, Any] = {"id": id, "task": task, "queue": queue, "cause": cause, "reason": reason}
        told |= {"actor": actor, "size": size, "list": list, "payload": payload}
        rest = [word for pair in fields.items() for word in pair]
        reply = self._call("discard_old", {"message": self.keys.message(mid)}, rest=rest, mid=mid, **told)
        return Code(reply[0])

    def restore(self, mid: str, actor: str, note: str, *, force: bool = False) -> None:
        """Bring what was discarded back into quarantine (NDLV), with its history, causes and counts.

        Args:
            force: also what was failed or edited.

        Raises:
            MessageNotFound: it is not on record.
            IllegalTransition: it is not given up; or it was failed or edited, and there is no ``force``.
        """
        arguments = {"mid": mid, "actor": actor, "note": note, "force": int(force)}
        reply = self._call("restore", {"message": self.keys.message(mid)}, **arguments)
        if reply[0] is Code.CONFLICT:
            raise IllegalTransition(
                WHY_FORCE.get(reply[1].decode(), "it was not merely discarded: use force")
            )

    def edit(
        self,
        mid: str,
        copy_mid: str,
        fields: Mapping[str, str | bytes | int],
        *,
        actor: str,
        note: str,
        number: int,
    ) -> None:
        """Put a changed copy into quarantine and give the original up (FAIL), which stays until it is purged.

        Args:
            fields: of the copy, as ``quarantine`` takes them; everything else is as in the original.
            number: of the decision.

        Raises:
            MessageNotFound, IllegalTransition: the original is not in quarantine.
            StaleDelivery: somebody else took the decision over.
        """
        keys = {"message": self.keys.message(mid), "copy": self.keys.message(copy_mid)}
        arguments = {"mid": mid, "copy_mid": copy_mid, "actor": actor, "note": note, "number": number}
        flat = [word for pair in fields.items() for word in pair]
        self._call("edit", keys, rest=flat, **arguments)

    def purge(self, mid: str, actor: str, note: str, number: int | None = None) -> None:
        """Delete the record and the body of a message that was given up.

        Args:
            number: of the decision that gave it up; None: whichever.

        Raises:
            MessageNotFound: it is not on record.
            IllegalTransition: it is not given up.
            StaleDelivery: it is not that decision any more.
        """
        words = {"mid": mid, "actor": actor, "note": note, "number": "" if number is None else number}
        self._call("purge", {"message": self.keys.message(mid)}, **words)

    def ask(
        self, whole: str, wish: Mapping[str, object], *, said: str, keep: float
    ) -> tuple[bool, Wish, float]:
        """Ask for an act that needs two persons.

        Args:
            whole: all that the act is; who agrees asks for exactly the same.
            wish: ``actor``, ``act``, ``messages``, ``note``, and who it is, as ``person``.
            said: the journal's note.
            keep: seconds for which it waits for a second person.

        Returns whether it may be done now, what was asked for first, and now, in seconds of Redis' clock.
        """
        act, keep_ms = sha256(whole.encode()).hexdigest(), int(keep * 1000)
        code, first, now = self._call("ask", {}, act=act, wish=json.dumps(wish), said=said, keep_ms=keep_ms)
        return code is Code.OK, Wish.decode(first), now / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish(Record):
    """What somebody asked for that needs two persons.

    Attributes:
        act: what is typed for it, after ``celery poison``.
        messages: how many it was about when it was asked for.
        since, until: seconds since 1970 by Redis' clock.
    """

    actor: str
    act: str
    messages: int
    note: str
    since: float
    until: float

    @classmethod
    def decode(cls, raw: bytes | str) -> Self:
        """Return it; ValueError: it is none."""
        try:
            told = json.loads(raw)
            return cls(
                actor=str(told["actor"]),
                act=str(told["act"]),
                messages=int(told["messages"]),
                note=str(told["note"]),
                since=told["at_ms"] / 1000,
                until=told["until_ms"] / 1000,
            )
        except (TypeError, LookupError, OverflowError) as error:
            raise ValueError(f"{raw!r} is no wish") from error

    @property
    def story(self) -> str:
        """It in a sentence."""
        note = f": {self.note}" if self.note else ""
        return f"{self.actor} asked for {self.act} ({count_of(self.messages, 'message')}){note}"

    @property
    def how(self) -> str:
        """What the second person does."""
        same = "ids" if "ID..." in self.act else "words"
        return f"somebody else does it by the same {same}: celery poison {self.act} --actor NAME"


def wishes(ledger: Caller) -> list[Wish]:
    """Return what waits for a second person, the oldest first; raises ``LedgerUnavailable``."""
    with clear_errors("reading what was asked for"):
        pipe = ledger.client.pipeline(transaction=False)
        pipe.hvals(ledger.keys.asked)
        pipe.time()
        texts, (now, micros) = pipe.execute()
    found = []
    for text in texts:
        with suppress(ValueError):  # a newer version may have written it
            found.append(Wish.decode(text))
    return sorted((wish for wish in found if wish.until > now + micros / 1e6), key=lambda wish: wish.since)
