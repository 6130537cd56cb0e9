"""What the pipeline's queries read, made in DuckDB of a journal's files or of a few entries."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

_ENDS = "('finished', 'crashed', 'interrupted', 'rolled_back')"
#: Attempts, in another way than :mod:`celery_poison.pipeline.tables` makes them.
_ENDED = f"""
create table ended as with ends as (
  select * from journal where token is not null and event in {_ENDS}
  qualify row_number() over (partition by token order by event = 'finished' desc, "at" desc, seq desc) = 1
), decided as (
  select id, "at", seq, event from journal
  where event = 'cleared' or event = 'crashed' and outcome = 'exact'
)
select token, id, task, queue, split_part(split_part(worker, '/', 1), '@', 2) as host, release, shape,
  event as end, case when event <> 'crashed' then outcome end as outcome, cause,
  case when event = 'crashed' then outcome end as blame, incident,
  case when event = 'crashed' then
    coalesce(incident, case when outcome = 'shared' then worker || '/' || pid end, token) end as death,
  case when event <> 'crashed' then null when outcome = 'exact' then 'proven' else coalesce((
    select case min_by(d.event, (d."at", d.seq)) when 'cleared' then 'cleared' else 'proven' end
    from decided d where d.id = e.id and (d."at", d.seq) > (e."at", e.seq) having count(*) > 0
  ), 'open') end as proof,
  crashes, payload_bytes, runtime_ms, pid, memory_kb, fingerprint, evidence,
  run_memory_kb, enqueued_at, deliveries,
  "at" - to_milliseconds(least(coalesce(runtime_ms, 0), 604800000)) as started_at, "at" as ended_at, seq,
  cast("at" as date) as date
from ends e
"""
_ALIVE = "(ended.end = 'rolled_back' or ended.end = 'finished' and outcome is distinct from 'lost')"
_TABLES = {
    "measured": """select date, task, release, payload_bytes, coalesce(runtime_ms, 0) as runtime_ms, cause,
      ended.end = 'crashed' as died,
      case when ended.end = 'crashed' then memory_kb else run_memory_kb end as run_memory_kb,
      case when deliveries = 1 and enqueued_at > 0 and ended.end <> 'crashed' then
        greatest(0, epoch_ms(ended_at) - coalesce(runtime_ms, 0) - enqueued_at) end as wait_ms
      from ended where ended.end in ('finished', 'crashed')""",
    "deaths": "select * from ended where ended.end = 'crashed'",
    "tallies": """select date, ended.end, outcome, proof, cause, task, queue, shape, host, release,
      case when payload_bytes < 1000 then 0 when payload_bytes is not null
        then least(6, cast(floor(log10(payload_bytes)) as int) - 2) end as size, count(*) as n,
      count(fingerprint) as fingerprints, coalesce(sum(runtime_ms), 0) as runtime_ms, min(ended_at) as since
      from ended group by all""",
    "kin": f"""select * from ended where fingerprint in (select fingerprint from deaths)
      or id in (select id from ended where not {_ALIVE} or ended.end = 'rolled_back')""",
    "fingerprints": f"""select fingerprint, min(task) as task, count(*) filter (where {_ALIVE}) as alive,
      count(*) filter (where proof = 'cleared') as cleared,
      count(*) filter (where ended.end = 'crashed') as deaths,
      count(distinct id) filter (where blame = 'exact' and crashes > 1) as guilty_messages from ended
      where fingerprint in (select fingerprint from deaths) group by fingerprint""",
    "noted": "select * from journal where event not in ('finished')",
    "incidents": """select incident as death, 'worker' as kind,
      max(cause) filter (where event = 'worker_lost') as cause, min("at") as "at",
      cast(min("at") as date) as date,
      epoch_ms(max("at") filter (where event = 'failover_finished')) - epoch_ms(min("at")) as recovery_ms
      from journal where incident is not null and event in ('worker_lost', 'crashed', 'failover_finished')
      group by incident union all select death, 'process', max(cause), min(ended_at), min(date), null
      from ended where incident is null and ended.end = 'crashed' group by death""",
}


def history(place: Path) -> Callable[[str], Any]:
    """Return what asks the journal below ``place``, or in that file."""
    files = place if place.is_file() else place / "**" / "*.parquet"
    return _asking(f"create view journal as select * from read_parquet('{files}')")


def entries(told: Iterable[dict[str, Any]]) -> Callable[[str], Any]:
    """Return what asks a journal of these entries, as those of ``tests.pipeline.entries``."""
    import pyarrow as pa

    from celery_poison.pipeline.schema import FIELDS
    from tests.pipeline.entries import START

    names = [(name, pa.int64() if kind.typeName() == "long" else pa.string()) for name, kind in FIELDS]
    schema = pa.schema([("at", pa.timestamp("us", tz="UTC")), ("seq", pa.int64()), *names])
    rows = [
        {**entry, "at": START + timedelta(seconds=entry["s"]), "seq": number}
        for number, entry in enumerate(told)
    ]
    return _asking("create table journal as select * from given", pa.Table.from_pylist(rows, schema=schema))


def table(journal: Any) -> Callable[[str], Any]:
    """Return what asks a journal that is an Arrow table of ``at``, ``seq`` and the journal's fields."""
    return _asking("create table journal as select * from given", journal)


def _asking(journal: str, given: Any = None) -> Callable[[str], Any]:
    import duckdb

    connection: Any = duckdb.connect(config={"threads": 1})
    connection.execute("set timezone = 'UTC'")
    if given is not None:
        connection.register("given", given)
    connection.execute(journal)
    connection.execute(_ENDED)
    for name, query in _TABLES.items():
        connection.execute(f"create table {name} as {query}")
    return lambda query: connection.sql(query.format(**{name: name for name in _TABLES})).to_arrow_table()
