"""Transitions of messages in quarantine, and of those that were given up: what a person decides."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

from celery_poison.errors import IllegalTransition, MessageNotFound, PoisonError, PolicyConflict
from celery_poison.ledger.connection import clear_errors
from celery_poison.ledger.scripts import Code, LedgerPart
from celery_poison.ledger.second_person import Wish
from celery_poison.rules.blocks import RuleKind
from celery_poison.states import Event

#: After this long an operator's unfinished decision counts as abandoned.
DECISION_PATIENCE_MS = 30_000

#: How long it is known what was imported, so that the same file does it once.
REMEMBER_IMPORTS_MS = 30 * 86_400_000

#: How a message was given up -> why ``restore`` wants force.
WHY_FORCE = {
    "failed": (
        "it was failed: its caller has the failure, its chord, chain and errbacks are resolved, and that"
        " cannot be undone; use --force to run it all the same"
    ),
    "edited": (
        "it was edited: its changed copy replaces it; use --force to restore the original too, and both may"
        " run"
    ),
}


class DecisionTransitions(LedgerPart):
    """The decisions of a person about a message, and requests for a second person."""

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

    @contextmanager
    def reserving(self, mid: str, verb: str, actor: str, note: str = "") -> Iterator[int]:
        """Reserve a message while it is acted on; if that fails, it is open to every act again.

        Yields the number of the decision. Raises as :meth:`decide`.
        """
        number = self.decide(mid, verb, actor, note)
        try:
            yield number
        except BaseException:
            self.undecide_each([(mid, number)])
            raise

    def undecide_each(self, decisions: Iterable[tuple[str, int]]) -> None:
        """Give reserved messages back, given as (mid, number), in one round trip; not what was taken over."""
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
        words |= {"patience_ms": DECISION_PATIENCE_MS, "actor": actor, "note": note, "journalled": plan}
        return self._scripts.call("schedule", **words)[0] is Code.OK

    def postpone(self, mid: str, seconds: float) -> None:
        """Let a message that leaves quarantine by itself wait once more, unless it has left."""
        with clear_errors("postponing"):
            now: Any = self._scripts.client.time()
            self._scripts.client.zadd(
                self._scripts.keys.outgoing, {mid: int((now[0] + seconds) * 1000)}, xx=True
            )

    def complete_send(self, mid: str, number: int, actor: str, canvas: str) -> None:
        """Note that the destination of a message has confirmed it; the body is there alone from now on.

        Args:
            number: of the decision.
            canvas: the tasks that wait beside its caller, as JSON; empty where unknown, or on record.

        Raises:
            MessageNotFound, IllegalTransition, StaleDelivery: another act was faster.
        """
        self._scripts.call("sent", mid=mid, number=number, actor=actor, canvas=canvas)

    def complete_release(
        self, mid: str, id: str, release: int, actor: str = "", note: str = "", queue: str = ""
    ) -> None:
        """Complete a release whose message was published (TBDL, on probation). Idempotent.

        Args:
            queue: where it was published, if not to its own queue.
        """
        (error,) = self.complete_releases([(mid, id, release)], actor, note, queue)
        if error is not None:
            raise error

    def complete_releases(
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
                WHY_FORCE.get(reply[1].decode(), "it was not merely discarded: use --force")
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
            "edit",
            {"copy": self._scripts.keys.message(copy_mid)},
            rest=fields,
            **words,
            number=number,
        )

    def import_message(
        self, mid: str, id: str, fields: Mapping[str, str | bytes | int], *, actor: str, note: str
    ) -> bool:
        """Store a message of another ledger (NDLV); False if it is here, or was imported lately."""
        words = {"actor": actor, "note": note, "remember_ms": REMEMBER_IMPORTS_MS}
        return self._scripts.call("import", self._of(mid, id), rest=fields, mid=mid, **words)[0] is Code.OK

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
        self, whole: str, wish: Mapping[str, object], *, journalled: str, keep: float
    ) -> tuple[bool, Wish, float]:
        """Ask for an act that needs two persons.

        Args:
            whole: the act in full; a second person agrees by asking for exactly the same.
            wish: ``actor``, ``act``, ``messages``, ``note`` and ``person``.
            journalled: the journal's note.
            keep: seconds for which it waits for a second person.

        Returns whether it may be done now, what was asked for first, and now, in seconds of Redis' clock.
        """
        act, keep_ms = sha256(whole.encode()).hexdigest(), int(keep * 1000)
        code, first, now = self._scripts.call(
            "ask", act=act, wish=json.dumps(wish), journalled=journalled, keep_ms=keep_ms
        )
        return code is Code.OK, Wish.decode(first), now / 1000


class PolicyTransitions(LedgerPart):
    """The decisions of a person for the whole fleet."""

    def set(self, task: str, options: str, expected: int, actor: str, note: str) -> int:
        """Override the policy of a task, or of every task (``*``), at run time; return the new version.

        Args:
            options: JSON object; the empty string takes the override away.
            expected: the version from which the caller started.

        Raises:
            PolicyConflict: that is not the version any more.
        """
        words = {"task": task, "options": options, "actor": actor, "note": note}
        code, version = self._scripts.call("policy_set", **words, expected=expected)
        if code is Code.CONFLICT:
            raise PolicyConflict(
                f"a policy was changed meanwhile: the version is {version}, not {expected}; nothing was done"
            )
        return int(version)

    def block(
        self, kind: RuleKind, name: str, *, task: str, lasts_ms: int, actor: str, note: str, journalled: str
    ) -> int:
        """Send messages of a task, or of a fingerprint, to quarantine on arrival; return the version.

        Args:
            task: whose messages can match; empty: those of any task.
            lasts_ms: 0 for until a person unblocks it.
            journalled: the journal's note.
        """
        words: dict[str, Any] = {"kind": kind, "name": name, "task": task, "lasts_ms": lasts_ms}
        return int(self._scripts.call("block", **words, actor=actor, note=note, journalled=journalled)[1])

    def unblock(self, kind: RuleKind, name: str, *, actor: str, journalled: str) -> int:
        """Take a rule off the block list, with the convictions that led to it; return the version.

        Raises:
            MessageNotFound: it is not blocked.
        """
        keys = {"convictions": self._scripts.keys.convictions(name)}
        reply = self._scripts.call("unblock", keys, kind=kind, name=name, actor=actor, journalled=journalled)
        if reply[0] is Code.DONE:
            raise MessageNotFound(f"{kind} {name} is not blocked")
        return int(reply[1])
