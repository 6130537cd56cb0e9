"""A Redis Stream as a Spark data source: ``spark.read.format("celery_poison")``.

::

    spark.dataSource.register(JournalSource)
    spark.read.format("celery_poison").option("url", "redis://localhost/0").load()

Options:
    url: of Redis, in any form that ``poison_redis_url`` takes. Required.
    master_name: of the Sentinels' master, beside a ``sentinel://`` URL.
    namespace: as ``poison_namespace`` says; default ``poison``.
    stream: key of the stream, in place of ``namespace``.
    from, to: ids; entries after ``from`` up to and including ``to``. Default: everything there is.
        A range is an option and not a filter, since Spark may keep a pushed filter for another query.
    partitions: most tasks to read with at a time; default 4.
    max_rows: about so many entries in one batch of ``ingest``; default a million.
    fetch: entries asked of Redis at a time; default 2000.

A trimmed stream gives what is left: use ``ingest``, which notices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from celery_poison.errors import ConfigurationError
from celery_poison.ledger.keys import Keys
from celery_poison.pipeline.ingest.stream import BEGINNING, FETCH, LAST_SEQUENCE, Stream, Tip, parts
from celery_poison.pipeline.schema import STORED

NAME = "celery_poison"


@dataclass(frozen=True)
class Wanted:
    """The options, checked. Goes to the executors, so that it holds no connection."""

    url: str
    key: str
    master_name: str
    after: str
    upto: str
    partitions: int
    max_rows: int
    fetch: int
    #: So few entries are not worth a task more.
    share: int = 20_000

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Wanted:
        if not options.get("url"):
            raise ConfigurationError('the data source celery_poison needs .option("url", "redis://…")')
        return cls(
            url=options["url"],
            key=options.get("stream") or Keys(options.get("namespace") or "poison").journal,
            master_name=options.get("master_name", ""),
            after=_id(options, "from") or BEGINNING,
            upto=_id(options, "to"),
            partitions=_number(options, "partitions", 4),
            max_rows=_number(options, "max_rows", 1_000_000),
            fetch=_number(options, "fetch", FETCH),
        )

    def stream(self) -> Stream:
        return Stream(self.url, self.key, self.master_name)


def _number(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name) or str(default)
    if not text.isdecimal() or int(text) < 1:
        raise ConfigurationError(f"data source celery_poison, option {name}: {text!r} is no positive number")
    return int(text)


def _id(options: Mapping[str, str], name: str) -> str:
    text = options.get(name) or ""
    if text and not text.replace("-", "", 1).isdecimal():
        raise ConfigurationError(f"data source celery_poison, option {name}: {text!r} is no stream id")
    return text


class Range(InputPartition):
    """The entries of ``(after, upto]``."""

    def __init__(self, after: str, upto: str) -> None:
        super().__init__((after, upto))
        self.after, self.upto = after, upto


def ranges(after: str, upto: str, first: str, count: int) -> list[Range]:
    """Cut ``(after, upto]`` into ``count`` ranges of equal time or less; none where it is empty.

    Args:
        first: id of the first entry after ``after``: time without entries is worth no task.
    """
    if not first or parts(first) > parts(upto):
        return []
    begin, end = parts(first)[0], parts(upto)[0]
    inner = sorted({begin + (end - begin) * n // count for n in range(1, count)} - {begin, end})
    cuts = [after, *(f"{ms}-{LAST_SEQUENCE}" for ms in inner), upto]
    return [Range(low, high) for low, high in pairwise(cuts)]


class BatchReader(DataSourceReader):
    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted

    def partitions(self) -> Sequence[InputPartition]:
        stream, after = self.wanted.stream(), self.wanted.after
        tip = stream.tip()
        share = max(1, min(self.wanted.partitions, expected(after, tip) // self.wanted.share))
        return ranges(after, self.wanted.upto or tip.id, stream.first_after(after), share)

    def read(self, partition: Any) -> Iterator[Any]:
        for chunk in self.wanted.stream().chunks(partition.after, partition.upto, self.wanted.fetch):
            yield chunk.rows


def expected(after: str, tip: Tip) -> int:
    """Return about how many entries come after one, as if they were spread evenly over time."""
    if not tip.first or parts(after) >= parts(tip.id):
        return 0
    begin, end, at = parts(tip.first)[0], parts(tip.id)[0], parts(after)[0]
    if at <= begin or end == begin:
        return tip.length
    return tip.length * (end - at) // (end - begin)


def halfway(first: str, tip: Tip, most: int) -> str:
    """Return an id about ``most`` entries after the first one; empty where the end is nearer."""
    if not first or (count := expected(first, tip)) <= most:
        return ""
    begin, end = parts(first)[0], parts(tip.id)[0]
    ms = begin + max(1, (end - begin) * most // count)
    return f"{ms}-{LAST_SEQUENCE}" if ms < end else ""


class JournalSource(DataSource):
    """Registered as ``celery_poison``; see the module."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return STORED

    def reader(self, schema: StructType) -> BatchReader:
        return BatchReader(Wanted.from_options(self.options))
