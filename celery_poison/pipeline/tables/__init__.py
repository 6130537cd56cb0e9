"""What the journal says, as tables: pure functions from DataFrame to DataFrame (NEW-7).

Each function ends in a ``select`` or an ``agg`` that is its schema; docs/pipeline-tables.md says what each
column means. None of them reads or writes anything, counts rows or needs a session of its own.
"""

from celery_poison.pipeline.tables.attempts import (
    attempts,
    ends,
    measured,
    noted,
    plain,
    repeated,
    troubled,
    united,
)
from celery_poison.pipeline.tables.daily import daily, tallies, task_daily
from celery_poison.pipeline.tables.fingerprints import fingerprints, fingerprints_daily
from celery_poison.pipeline.tables.incidents import incidents, messages

__all__ = ["attempts", "plain", "ends", "measured", "troubled", "repeated", "united", "noted", "messages"]
__all__ += ["incidents", "fingerprints", "fingerprints_daily", "tallies", "daily", "task_daily"]
