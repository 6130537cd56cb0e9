"""Every key name of the ledger is built here and nowhere else; docs/keys.md says what each holds.

All keys share one hash tag, the namespace: on a cluster they are in one slot, and scripts reach all of them.
"""

from __future__ import annotations

import re

from celery_poison.basics.rooms import all_rooms

_REBIRTH = re.compile(r"r\d+$")


def life_of(incarnation: str) -> str:
    """Return the part of an incarnation that stays the same when its worker rejoins."""
    return _REBIRTH.sub("", incarnation)


class Keys:
    """Builds the key names of one namespace."""

    def __init__(self, namespace: str = "poison", quarantine_queue: str = "celery.quarantine") -> None:
        self.prefix = f"{{{namespace}}}:"
        self.meta = self.prefix + "meta"
        self.running = self.prefix + "running"
        self.done = self.prefix + "done"
        self.parked = self.prefix + "parked"
        self.parcels = self.prefix + "parcels"
        self.awaited = self.prefix + "awaited"
        self.candidates = self.prefix + "candidates"
        self.quarantine = f"{self.prefix}quarantine:{quarantine_queue}"
        #: Prefix of the index of what is in quarantine; ``_groups.lua`` builds the rest.
        self.groups = f"{self.prefix}groups:{quarantine_queue}"
        self.outgoing = self.prefix + "outgoing"
        self.imported = self.prefix + "imported"
        self.failed = self.prefix + "failed"
        self.unprocessable = self.prefix + "unprocessable"
        self.asked = self.prefix + "asked"
        self.wanted = self.prefix + "wanted"
        self.policy = self.prefix + "policy"
        self.blocks = self.prefix + "blocks"
        self.paused = self.prefix + "paused"
        self.journal = self.prefix + "journal"
        self.counts = self.prefix + "counts"
        self.deaths_by_day = self.prefix + "deaths_by_day"
        self.untold = self.prefix + "untold"
        self.would = self.prefix + "would"
        self.tally = self.prefix + "tally"
        self.filling = self.prefix + "filling"
        self._name_fleet()
        self._name_outbox()
        #: Names of keys of extensions, ``KEYS`` of their rooms -> what names one of several.
        self.of_rooms = {
            name: word for room in all_rooms() for name, word in getattr(room, "KEYS", {}).items()
        }

    @property
    def fixed(self) -> dict[str, str]:
        """Name -> key, or prefix of many; a script finds its own by these names."""
        named = {name: key for name, key in vars(self).items() if name not in ("prefix", "of_rooms")}
        return named | {name: self.of(name) for name, word in self.of_rooms.items() if not word}

    def of(self, name: str, word: str = "") -> str:
        """Return a key of an extension; ``word`` names one of several."""
        if name not in self.of_rooms:
            raise KeyError(name)
        return f"{self.prefix}{name}:{word}" if word else self.prefix + name

    def _name_fleet(self) -> None:
        self.leases = self.prefix + "leases"
        self.presence = self.prefix + "presence"
        self.gone = self.prefix + "gone"
        self.buried = self.prefix + "buried"
        #: Prefix of the channels that a worker's processes are subscribed to.
        self.alive = self.prefix + "alive:"
        #: Prefix of what nurseries say of the end of their workers.
        self.endings = self.prefix + "ended:"
        #: Prefix of the leases of pool processes.
        self.children = self.prefix + "child:"
        self.open = self.prefix + "open"
        self.incidents = self.prefix + "incidents"
        self.monitor = self.prefix + "monitor"
        self.monitor_fence = self.prefix + "monitor_fence"
        self.deaths = self.prefix + "deaths"
        self.gate = self.prefix + "gate"

    def _name_outbox(self) -> None:
        self.tied_lately = self.prefix + "tied_lately"
        self.outbox_seq = self.prefix + "outbox_seq"
        self.outbox_due = self.prefix + "outbox_due"
        self.outbox_wake = self.prefix + "outbox_wake"

    def convictions(self, fingerprint: str) -> str:
        return f"{self.prefix}convictions:{fingerprint}"

    def lineage(self, id: str) -> str:
        return f"{self.prefix}lineage:{id}"

    def tied(self, token: str) -> str:
        return f"{self.prefix}tied:{token}"

    def attempt(self, token: str) -> str:
        return f"{self.prefix}attempt:{token}"

    def message(self, mid: str) -> str:
        return f"{self.prefix}message:{mid}"

    def group(self, sha: str) -> str:
        return f"{self.groups}:{sha}"

    def worker(self, incarnation: str) -> str:
        return f"{self.prefix}worker:{incarnation}"

    def channel(self, incarnation: str) -> str:
        """Return the channel of a worker's processes; they keep it when the worker rejoins."""
        return self.alive + life_of(incarnation)

    @property
    def news(self) -> str:
        """The channel on which nurseries say that a worker has ended; no worker has such a name."""
        return self.channel("ended")

    def child(self, incarnation: str, pid: int | str) -> str:
        return f"{self.children}{life_of(incarnation)}#{pid}"

    def ended(self, incarnation: str) -> str:
        return self.endings + life_of(incarnation)

    def lane(self, lane: str) -> str:
        """Return where the messages of one lane of the outbox wait."""
        return f"{self.prefix}outbox:{lane}"

    def incident(self, incident: str) -> str:
        return f"{self.prefix}incident:{incident}"
