"""The same figures once more, in another engine and another way: SQL over the journal itself, in DuckDB."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_JOURNAL = "create view journal as select * from read_parquet('{0}/**/*.parquet', hive_partitioning = true)"

#: For every element: deaths without those whom a trial cleared (or with them), and runs that ended alive.
_COUNTS = """
with crashes as (
  select *, coalesce(incident, case when outcome = 'shared' then worker || '/' || pid end, token) as death
  from journal where event = 'crashed'
), judged as (
  select c.*, outcome = 'shared' and coalesce((
    select arg_min(d.event, (d.at, d.seq)) from journal d
    where d.id = c.id and (d.at, d.seq) > (c.at, c.seq)
      and (d.event = 'cleared' or d.event = 'crashed' and d.outcome = 'exact')
  ) = 'cleared', false) as innocent from crashes c
), failing as (
  select death, unnest([{pairs}], recursive := true), innocent from judged
), passing as (
  select unnest([{pairs}], recursive := true) from journal
  where event = 'rolled_back' or event = 'finished' and outcome is distinct from 'lost'
), named as (select dimension, key from failing where key is not null group by all
), failed as (
  select dimension, key, count(distinct death) as failed from failing
  where key is not null and not ({trials} and innocent) group by all
), passed as (
  select dimension, key, count(*) as passed from passing where key is not null group by all
), f as (select dimension, count(distinct death) as failed_total from failing
         where key is not null and not ({trials} and innocent) group by all
), p as (select dimension, sum(passed) as passed_total from passed group by all)
select dimension, key, coalesce(failed, 0)::bigint, coalesce(passed, 0)::bigint,
       coalesce(failed_total, 0)::bigint, coalesce(passed_total, 0)::bigint
from named left join failed using (dimension, key) left join passed using (dimension, key)
     left join f using (dimension) left join p using (dimension)
"""

_KEYS = {
    "fingerprint": "fingerprint",
    "task": "task",
    "shape": "task || '(' || shape || ')'",
    "payload": """task || ' ' || case when payload_bytes < 1e3 then 'under 1 kB' when payload_bytes < 1e4
      then '1-10 kB' when payload_bytes < 1e5 then '10-100 kB' when payload_bytes < 1e6 then '100 kB-1 MB'
      when payload_bytes < 1e7 then '1-10 MB' when payload_bytes < 1e8 then '10-100 MB'
      when payload_bytes is not null then '100 MB or more' end""",
    "host": "split_part(split_part(worker, '/', 1), '@', 2)",
    "release": "release",
}


def counts(history: Path, *, trials: bool) -> dict[tuple[str, str], tuple[int, int, int, int]]:
    """Return (dimension, key) -> failed, passed, failed_total, passed_total."""
    import duckdb

    connection: Any = duckdb.connect()
    connection.execute(_JOURNAL.format(history))
    pairs = ", ".join(f"{{'dimension': '{name}', 'key': {key}}}" for name, key in _KEYS.items())
    rows = connection.execute(_COUNTS.format(pairs=pairs, trials="true" if trials else "false")).fetchall()
    return {(row[0], row[1]): row[2:] for row in rows}


def scores(failed: int, passed: int, failed_total: int, passed_total: int) -> dict[str, float]:
    """The measures in plain arithmetic, from the definitions."""
    if not failed:
        return dict.fromkeys(("ochiai", "tarantula", "dstar", "jaccard"), 0.0)
    missed = failed_total - failed
    share_failed, share_passed = failed / failed_total, passed / passed_total if passed_total else 0.0
    return {
        "ochiai": failed / (failed_total * (failed + passed)) ** 0.5,
        "tarantula": share_failed / (share_failed + share_passed),
        "dstar": failed**2 / (passed + missed) if passed + missed else float("inf"),
        "jaccard": failed / (failed + missed + passed),
    }
