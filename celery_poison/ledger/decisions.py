"""Transitions of messages by what a person decides: out of quarantine, and of those that were given up."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Self

from celery_poison.basics.text import count_of
from celery_poison.errors import IllegalTransition, PoisonError
from celery_poison.ledger.connection import Namespace, clear_errors
from celery_poison.ledger.scripts import Code, Part
from celery_poison.model import Record
from celery_poison.states import Event

#: After this long an operator's unfinished decision counts as abandoned.
DECISION_PATIENCE_MS = 30_000

#: How a message was given up -> why ``restore`` wants force.
WHY_FORCE = {
    "failed": (
        "it was failed: its caller has the failure, its chord, chain and errbacks are resolved, and that"
        " cannot be undone; use force to run it all the same"
    ),
    "edited": (
        "it was edited: its changed copy replaces it; use force to restore the original too, and both may run"
    ),
}


class DecisionTransitions(Part):
    """What a person decides about a message, or asks a second person for."""

    def decide(self, mid: str, verb: str, actor: str, note: str = "") -> int:
        """Reserve a message in quarantine for one operator; return the number of the decision.

        Raises:
            MessageNotFound, IllegalTransition: it is not in quarantine.
            DecisionPending: another operator is at it.
        """
        (number,) = self.decide_each([mid], verb, actor, note)
        if isinstance(number, PoisonError):
            raise number
        return number

    def decide_each(
        self, mids: Sequence[str], verb: str, actor: str, note: str = ""
    ) -> list[int | PoisonError]:
        """Reserve messages, each for itself, in one round trip.

        Returns their numbers; in place of a number what :meth:`decide` would raise.
        """
        words = {"verb": verb, "actor": actor, "note": note, "patience_ms": DECISION_PATIENCE_MS}
        calls = (({"message": self._scripts.keys.message(mid)}, {"mid": mid}) for mid in mids)
        replies = self._scripts.call_each("decide", calls, as_text=True, **words)
        return [reply if isinstance(reply, PoisonError) else int(reply[1]) for reply in replies]

    def undecide(self, mid: str, number: int) -> None:
        """Give a reserved message back after a failed attempt, unless it was taken over."""
        self.undecide_each([(mid, number)])

    def undecide_each(self, decisions: Iterable[tuple[str, int]]) -> None:
        """Give reserved messages back, given as (mid, number), in one round trip."""
        calls = (({"message": self._scripts.keys.message(mid)}, {"number": n}) for mid, n in decisions)
        self._scripts.call_each("undecide", calls, as_text=True)

    def schedule(self, mid: str, after: float, times: int, actor: str, note: str) -> bool:
        """Let a message go back to its queue after ``after`` seconds, ``times`` times at most; 0: never.

        Returns False where nothing was to be taken back.

        Raises:
            MessageNotFound, IllegalTransition: it is not in quarantine, or it goes somewhere else.
            DecisionPending: another operator is at it.
        """
        plan = ": ".join(filter(None, (f"in {after:g} s, {times} times at most" if times else "", note)))
        words: dict[str, Any] = {"mid": mid, "times": times, "pause_ms": round(after * 1000)}
        words |= {"patience_ms": DECISION_PATIENCE_MS, "actor": actor, "note": note, "said": plan}
        return self._scripts.call("schedule", **words)[0] is Code.OK

    def postpone(self, mid: str, seconds: float) -> None:
        """Let a message that leaves quarantine by itself wait once more, unless it has left."""
        with clear_errors("postponing"):
            now: Any = self._scripts.client.time()
            self._scripts.client.zadd(
                self._scripts.keys.outgoing, {mid: int((now[0] + seconds) * 1000)}, xx=True
            )

    def sent(self, mid: str, number: int, actor: str, canvas: str) -> None:
        """Note that the destination of a message has confirmed it; the body is there alone from now on.

        Args:
            number: of the decision.
            canvas: the tasks that wait beside its caller, as JSON; empty where unknown, or on record.

        Raises:
            MessageNotFound, IllegalTransition, StaleDelivery: another act was faster.
        """
        self._scripts.call("sent", mid=mid, number=number, actor=actor, canvas=canvas)

    def released(
        self, mid: str, id: str, release: int, actor: str = "", note: str = "", queue: str = ""
    ) -> None:
        """Complete a release whose message was published (TBDL, on probation). Idempotent.

        Args:
            queue: where it was published, if not to its own queue.
        """
        (error,) = self.released_each([(mid, id, release)], actor, note, queue)
        if error is not None:
            raise error

    def released_each(
        self, releases: Iterable[tuple[str, str, int]], actor: str = "", note: str = "", queue: str = ""
    ) -> list[PoisonError | None]:
        """Complete releases, given as (mid, task id, number), at once; return why each is refused."""
        common = {"actor": actor, "note": note, "queue": queue}
        calls = ((self._of(mid, id), {"mid": mid, "release": number}) for mid, id, number in releases)
        replies = self._scripts.call_each("released", calls, as_text=True, **common)
        return [reply if isinstance(reply, PoisonError) else None for reply in replies]

    def give_up(self, mid: str, event: Event, actor: str, note: str, number: int = 0) -> None:
        """Complete a ``failed`` or ``discarded`` decision (FAIL).

        Raises:
            StaleDelivery: another person took the decision over.
        """
        self._scripts.call("give_up", mid=mid, event=event, actor=actor, note=note, number=number)

    # --- what was given up, or is given up for a changed copy -----------------------------------

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
        words: dict[str, Any] = {"id": id, "task": task, "queue": queue, "cause": cause, "reason": reason}
        words |= {"actor": actor, "size": size, "list": list, "payload": payload}
        return Code(self._scripts.call("discard_old", rest=fields, mid=mid, **words)[0])

    def restore(self, mid: str, actor: str, note: str, *, force: bool = False) -> None:
        """Bring what was discarded back into quarantine (NDLV), with its history, causes and counts.

        Args:
            force: also what was failed or edited.

        Raises:
            MessageNotFound: it is not on record.
            IllegalTransition: it is not given up; or it was failed or edited, and there is no ``force``.
        """
        reply = self._scripts.call("restore", mid=mid, actor=actor, note=note, force=force)
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
            StaleDelivery: another person took the decision over.
        """
        words: dict[str, Any] = {"mid": mid, "copy_mid": copy_mid, "actor": actor, "note": note}
        self._scripts.call(
            "edit", {"copy": self._scripts.keys.message(copy_mid)}, rest=fields, **words, number=number
        )

    def purge(self, mid: str, actor: str, note: str, number: int | None = None) -> None:
        """Delete the record and the body of a message that was given up.

        Args:
            number: of the decision that gave it up; None: whichever.

        Raises:
            MessageNotFound: it is not on record.
            IllegalTransition: it is not given up.
            StaleDelivery: it is not that decision any more.
        """
        self._scripts.call("purge", mid=mid, actor=actor, note=note, number=number)

    def ask(
        self, whole: str, wish: Mapping[str, object], *, said: str, keep: float
    ) -> tuple[bool, Wish, float]:
        """Ask for an act that needs two persons.

        Args:
            whole: the act in full; a second person agrees by asking for exactly the same.
            wish: ``actor``, ``act``, ``messages``, ``note`` and ``person``.
            said: the journal's note.
            keep: seconds for which it waits for a second person.

        Returns whether it may be done now, what was asked for first, and now, in seconds of Redis' clock.
        """
        act, keep_ms = sha256(whole.encode()).hexdigest(), int(keep * 1000)
        code, first, now = self._scripts.call(
            "ask", act=act, wish=json.dumps(wish), said=said, keep_ms=keep_ms
        )
        return code is Code.OK, Wish.decode(first), now / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish(Record):
    """What a person asked for that needs two persons.

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
            wish = json.loads(raw)
            return cls(
                actor=str(wish["actor"]),
                act=str(wish["act"]),
                messages=int(wish["messages"]),
                note=str(wish["note"]),
                since=wish["at_ms"] / 1000,
                until=wish["until_ms"] / 1000,
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
        return f"another person does it by the same {same}: celery poison {self.act} --actor NAME"


def wishes(ledger: Namespace) -> list[Wish]:
    """Return the wishes that wait for a second person, the oldest first; raises ``LedgerUnavailable``."""
    with clear_errors("reading what was asked for"):
        pipe = ledger.client.pipeline(transaction=False)
        pipe.hvals(ledger.keys.asked)
        pipe.time()
        texts, (now, micros) = pipe.execute()
    asked = []
    for text in texts:
        with suppress(ValueError):  # a newer version may have written it
            asked.append(Wish.decode(text))
    return sorted((wish for wish in asked if wish.until > now + micros / 1e6), key=lambda wish: wish.since)
