"""What a row of the lake is: one journal entry, typed (docs/journal.md, docs/pipeline.md).

A field that is empty in the journal is null here. A number that is no number, or does not fit into 64
bits, is null in its column and kept as it was in ``rest``. Fields of a later schema are null in
entries of an earlier one. Nothing of an entry is lost: what no column holds is in ``rest``.
"""

from __future__ import annotations

from pyspark.sql.types import (
    BooleanType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from celery_poison.ledger import journal

#: The schema versions that this pipeline understands; entries of others are stored, and left out on reading.
VERSIONS = (1, 2, 3)

_NUMBERS = (
    *("pid", "deliveries", "crashes", "strikes", "failures", "runtime_ms", "payload_bytes", "memory_kb"),
    *("enqueued_at", "run_memory_kb"),
)
#: The journal's fields after ``v``, in their order.
FIELDS: tuple[tuple[str, DataType], ...] = tuple(
    (name, LongType() if name in _NUMBERS else StringType()) for name in journal.FIELDS[1:]
)

#: How many entries were ever added to the journal, where that is not known.
UNKNOWN = -1

#: The last millisecond of the year 9999: what Spark and Python can show.
LAST_MS = 253_402_300_799_999

#: How many fields, ``v`` among them, an entry of each version has.
WIDTHS = {1: 20, 2: 26, 3: 28}

#: What the tables are made of.
#:
#: ``entry`` is the stream id, ``<ms>-<sequence>``, unique in a journal. ``at`` (UTC) and ``seq`` are
#: its two parts: order by both, since a stream id does not sort as text. ``date`` is the day of ``at`` in
#: UTC. ``at``, ``seq`` and ``date`` are null for an id that is no time. ``healthy`` says whether it is of a
#: run that ended alive: ``finished``, and not ``lost``, of a version that is known. The others, few in a
#: hundred, have files of their own in the lake.
JOURNAL = StructType(
    [
        StructField("entry", StringType(), nullable=False),
        StructField("at", TimestampType()),
        StructField("seq", LongType()),
        StructField("date", DateType()),
        StructField("v", IntegerType()),
        *(StructField(name, kind) for name, kind in FIELDS),
        StructField("healthy", BooleanType()),
    ]
)

#: What an entry becomes: the same and ``rest``, a JSON object of the fields that no column holds (of an
#: unknown version, or hostile), else null.
STORED = StructType([*JOURNAL.fields, StructField("rest", StringType())])

#: What the lake stores: the same and the ``app`` whose journal it was.
LAKE = StructType([*STORED.fields, StructField("app", StringType())])

#: What never came into the lake.
GAPS = StructType(
    [
        StructField("app", StringType()),
        StructField("after", StringType()),
        StructField("upto", StringType()),
        StructField("missing", LongType()),
        StructField("why", StringType()),
    ]
)
