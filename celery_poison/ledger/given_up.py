"""Transitions of what was given up, or is given up for a changed copy; each is one atomic step."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from celery_poison.errors import IllegalTransition
from celery_poison.ledger.scripts import Caller, Code

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

    def ask(self, act: str, *, person: str, actor: str, said: str, keep: float) -> tuple[bool, str, float]:
        """Ask for an act that needs two persons.

        Args:
            act: what it is; who agrees asks for exactly the same.
            person: who it is; another one than asked first agrees.
            said: the journal's note.
            keep: seconds for which it waits for a second person.

        Returns whether it may be done now, who asked first, and for how many seconds that stands.
        """
        own, keep_ms = {"asked": self.keys.asked(sha256(act.encode()).hexdigest())}, int(keep * 1000)
        code, first, left = self._call("ask", own, person=person, actor=actor, said=said, keep_ms=keep_ms)
        return code is Code.OK, first.decode(), left / 1000
