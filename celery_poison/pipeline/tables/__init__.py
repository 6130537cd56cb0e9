"""What the journal says, as tables: pure functions from DataFrame to DataFrame (NEW-7).

Each function ends in a ``select`` that is its schema; docs/pipeline-tables.md says what each column means.
None of them reads or writes anything, counts rows or needs a session of its own.
"""

from celery_poison.pipeline.tables.attempts import attempts
from celery_poison.pipeline.tables.incidents import incidents

__all__ = ["attempts", "incidents"]
