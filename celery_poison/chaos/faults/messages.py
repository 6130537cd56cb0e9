"""A message comes that kills whoever runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_poison.chaos import poisons
from celery_poison.chaos.faults.kind import EVERY_POOL, fault
from celery_poison.chaos.plan import Fault
from celery_poison.chaos.runs import Blow

if TYPE_CHECKING:
    from celery_poison.chaos.torment import Torment

PREFIX = "poison-"


def _send(torment: Torment, fault: Fault, blow: Blow) -> None:
    blow.note = torment.load.send_poison(fault.name.removeprefix(PREFIX))


for _name in poisons.NAMES:
    fault(PREFIX + _name, pools=("prefork",) if _name in poisons.ONLY_PREFORK else EVERY_POOL)(_send)
