"""What the journal says, as tables: pure functions from DataFrame to DataFrame (NEW-7).

Each function ends in a ``select`` or an ``agg`` that is its schema; docs/pipeline-tables.md says what each
column means. None of them reads or writes anything, counts rows or needs a session of its own.
"""

from celery_poison.pipeline.tables.attempts import attempts, noted
from celery_poison.pipeline.tables.fingerprints import fingerprints
from celery_poison.pipeline.tables.incidents import incidents
from celery_poison.pipeline.tables.kin import kin
from celery_poison.pipeline.tables.messages import messages
from celery_poison.pipeline.tables.tallies import tallies
from celery_poison.pipeline.tables.task_daily import task_daily
from celery_poison.pipeline.tables.usual import usual

__all__ = [
    "attempts",
    "incidents",
    "messages",
    "fingerprints",
    "task_daily",
    "noted",
    "kin",
    "tallies",
    "usual",
]
