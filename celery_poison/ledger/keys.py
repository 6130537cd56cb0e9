"""Every key name of the ledger is built here and nowhere else.

All keys share one hash tag, the namespace, so that every script is legal on Redis Cluster too.

| key | type | holds | lives until |
|---|---|---|---|
| ``{ns}:meta`` | hash | schema, app, broker identity, fingerprint secret | for ever |
| ``{ns}:running`` | hash | mid -> start (JSON array, see ``model.Start``) | its acknowledgement |
| ``{ns}:done`` | hash | token -> how that start ended (D, B, I) | its acknowledgement |
| ``{ns}:parked`` | hash | mid -> its parking (JSON, see ``model.Parked``) | a day after its end |
| ``{ns}:parcels`` | hash | mid -> the original of a message that is parked now | it is published again |
| ``{ns}:effect:KEY`` | hash | who has an idempotency key, and whether it has returned | its window; a week |
| ``{ns}:awaited`` | hash | mid -> the ``effect`` that a parked message waits for | it is published again |
| ``{ns}:owed`` | hash | report id -> an error transaction that is to be sent (JSON) | it is sent |
| ``{ns}:attempt:TOKEN`` | list | what somebody is told of a start that fails | its end; a week |
| ``{ns}:tied:TOKEN`` | list | what is published with the success of a start | its end; a day |
| ``{ns}:tied_lately`` | string | something was tied to the success of a task | a day after the last |
| ``{ns}:lineage:ID`` | hash | counts of a task id that gave trouble | success, or quarantine |
| ``{ns}:candidates`` | zset | ids flagged as candidates, by time flagged | cleared or quarantined |
| ``{ns}:message:MID`` | hash | the original message and its record | release; given up: purge |
| ``{ns}:quarantine:NAME`` | zset | mids in quarantine (NDLV), by time | a person's decision |
| ``{ns}:groups:NAME`` | prefix | of the index of what is alike there (``_groups.lua``) | none is left |
| ``{ns}:groups:NAME:SHA`` | zset | mids that are alike, by time | none is left |
| ``{ns}:groups:NAME:repair`` | string | whether somebody is putting the groups right | it is done |
| ``{ns}:outgoing`` | zset | mids in quarantine that leave it by themselves, by when (ms) | they have left |
| ``{ns}:imported`` | zset | mids that were imported, by time (ms) | 30 days |
| ``{ns}:failed`` | zset | mids given up (FAIL), by time | purge |
| ``{ns}:asked`` | hash | hash of an act that needs two persons -> who asked | a second one, or an hour |
| ``{ns}:leases`` | zset | worker incarnations, by last heartbeat (ms) | retirement or death |
| ``{ns}:presence`` | hash | incarnation -> run id of the Redis it is subscribed at | retirement or death |
| ``{ns}:gone`` | hash | incarnation -> since when nobody is on its channel (ms) | return, or death |
| ``{ns}:buried`` | zset | incarnations declared dead, by time; they never come back | a week |
| ``{ns}:child:INC#PID`` | string | the lease of one pool process | activation interval |
| ``{ns}:worker:INC`` | hash | what a worker told about itself | retirement, or a day |
| ``{ns}:open`` | hash | dead incarnation -> its incident, while recovered | end of the recovery |
| ``{ns}:incidents`` | zset | incident ids, by time noticed | the newest 1000 |
| ``{ns}:incident:IID`` | hash | one worker's death | 30 days |
| ``{ns}:monitor`` | string | incarnation that holds the monitor's lock | activation interval |
| ``{ns}:monitor_fence`` | string | fencing number of the newest monitor | for ever |
| ``{ns}:deaths`` | zset | workers that died lately, by time | the gate's window |
| ``{ns}:gate`` | hash | how long the fleet gate is closed, and why | for ever |
| ``{ns}:policy`` | hash | policies overridden at run time, and their version | for ever |
| ``{ns}:blocks`` | hash | blocked tasks and fingerprints, and the list's version | unblocked, or over |
| ``{ns}:paused`` | hash | paused queues and tasks, and the version of that | resumed |
| ``{ns}:published`` | hash | what the pipeline proposes, and what it put in force | taken back |
| ``{ns}:convictions:FP`` | string | convictions of one fingerprint | 30 days after the last |
| ``{ns}:journal`` | stream | every transition (docs/journal.md) | ``poison_journal_maxlen`` |
| ``{ns}:counts`` | hash | totals since the ledger began | for ever |
| ``{ns}:untold`` | hash | notices for Flower (``notices.py``) | taken, or a day |
| ``{ns}:notified`` | hash | what receivers of ``poison_notify`` were told | its group is forgotten |
| ``{ns}:would`` | hash | cause -> messages (``poison_observe_only``) | for ever |
| ``{ns}:tally`` | hash | task -> ended runs (``poison_journal=incidents``)| for ever |
| ``{ns}:outbox:LANE`` | zset | packed messages to be sent, by sequence number | sent, or dropped |
| ``{ns}:outbox_seq`` | string | the newest sequence number | for ever |
| ``{ns}:outbox_due`` | zset | lane -> when a relay looks at it next (ms) | its last message is sent |
| ``{ns}:outbox_lanes`` | hash | lane -> how its sending stands | its last message is sent |
| ``{ns}:outbox_blocked`` | hash | what is blocked for sending -> why | unblocked |
| ``{ns}:outbox_failed`` | zset | tied messages that could not be sent | a person's decision |
| ``{ns}:outbox_wake`` | list | one token while a relay should look | taken |
| ``{ns}:outbox_mover`` | string | who moves rows of the user's database | 15 s |
| ``{ns}:outbox_moved`` | set | uids of rows that are in the outbox | the row is deleted |
| ``{ns}:outbox_rows`` | list | one token after the commit of rows | taken |
| ``{ns}:filling`` | hash | queue -> when a warning said that it fills up (ms) | a day after the last |
"""

from __future__ import annotations

import re

_REBIRTH = re.compile(r"r\d+$")


def life_of(incarnation: str) -> str:
    """Return what stays the same of an incarnation when its worker rejoins."""
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
        self.owed = self.prefix + "owed"
        self.candidates = self.prefix + "candidates"
        self.quarantine = f"{self.prefix}quarantine:{quarantine_queue}"
        #: Prefix of the index of what is in quarantine; ``_groups.lua`` builds the rest.
        self.groups = f"{self.prefix}groups:{quarantine_queue}"
        self.groups_repair = f"{self.groups}:repair"
        self.outgoing = self.prefix + "outgoing"
        self.imported = self.prefix + "imported"
        self.failed = self.prefix + "failed"
        self.asked = self.prefix + "asked"
        self.policy = self.prefix + "policy"
        self.blocks = self.prefix + "blocks"
        self.paused = self.prefix + "paused"
        self.published = self.prefix + "published"
        self.journal = self.prefix + "journal"
        self.counts = self.prefix + "counts"
        self.untold = self.prefix + "untold"
        self.notified = self.prefix + "notified"
        self.would = self.prefix + "would"
        self.tally = self.prefix + "tally"
        self.filling = self.prefix + "filling"
        self._name_fleet()
        self._name_outbox()

    def _name_fleet(self) -> None:
        self.leases = self.prefix + "leases"
        self.presence = self.prefix + "presence"
        self.gone = self.prefix + "gone"
        self.buried = self.prefix + "buried"
        #: Prefix of the channels that a worker's processes are subscribed to.
        self.alive = self.prefix + "alive:"
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
        self.outbox_lanes = self.prefix + "outbox_lanes"
        self.outbox_blocked = self.prefix + "outbox_blocked"
        self.outbox_failed = self.prefix + "outbox_failed"
        self.outbox_wake = self.prefix + "outbox_wake"
        self.outbox_mover = self.prefix + "outbox_mover"
        self.outbox_moved = self.prefix + "outbox_moved"
        self.outbox_rows = self.prefix + "outbox_rows"

    def convictions(self, fingerprint: str) -> str:
        return f"{self.prefix}convictions:{fingerprint}"

    def lineage(self, id: str) -> str:
        return f"{self.prefix}lineage:{id}"

    def effect(self, key: str) -> str:
        return f"{self.prefix}effect:{key}"

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

    def child(self, incarnation: str, pid: int | str) -> str:
        return f"{self.children}{life_of(incarnation)}#{pid}"

    def lane(self, lane: str) -> str:
        """Return where the messages of one lane of the outbox wait."""
        return f"{self.prefix}outbox:{lane}"

    def incident(self, incident: str) -> str:
        return f"{self.prefix}incident:{incident}"
