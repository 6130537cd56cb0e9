"""celery_poison: one bad message no longer takes the fleet down.

The life of a message, in reading order: ``producer`` side ``plugin`` stamps it; ``worker`` lets it in,
records its start and end, blames a dead pool process; ``failover`` notices a dead worker and puts its
messages back; ``quarantine`` holds what was convicted until a person releases or fails it. ``verdict``
decides, ``ledger`` remembers.
"""

from celery_poison.guard import guarded
from celery_poison.plugin import install
from celery_poison.policy import Policy
from celery_poison.quarantine import Quarantine
from celery_poison.states import State
from celery_poison.task import PoisonTask

__all__ = ["PoisonTask", "Policy", "Quarantine", "State", "guarded", "install"]
