"""Whose memory grew before workers died, as their black boxes tell it: evidence, no verdict (NEW-19)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from celery_poison.causes import Evidence
from celery_poison.extensions.black_box.evidence import GrowthEvidence, sentence_of


def _text(name: str) -> str:
    return f"""regexp_extract(box, '"{name}": ?"([^"]*)"', 1) as {name}"""


def _number(name: str) -> str:
    return f"""try_cast(regexp_extract(box, '"{name}": ?([0-9]+)', 1) as bigint) as {name}"""


#: What grew, where, in how many deaths, and the most that was seen; all suspects of a death tell the same.
GREW = f"""
select grew_task, grew_at, count(*) as deaths, cast(sum(likely) as int) as likely,
  max(grew_to_kb) as grew_to_kb, max(grew_kb_s) as grew_kb_s
from (select {_text("grew_task")}, {_text("grew_at")}, {_number("grew_to_kb")}, {_number("grew_kb_s")},
    case when box like '%"oom":true%' or box like '%"oom_likely":true%' then 1 else 0 end as likely
  from (select death, max(evidence) as box from {{deaths}}
    where {{recent}} and {{window}} and evidence like '%"grew_to_kb"%' group by death) d) g
where grew_to_kb >= 1024 group by grew_task, grew_at
order by deaths desc, grew_to_kb desc, grew_task, grew_at limit 5
"""


def rows(found: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what :data:`GREW` found, each row with the sentence ``says``."""
    return [_row({**row, **{name: _plain(row[name]) for name in ("grew_task", "grew_at")}}) for row in found]


def _row(row: dict[str, Any]) -> dict[str, Any]:
    names = ("grew_task", "grew_at", "grew_to_kb", "grew_kb_s")
    grew = GrowthEvidence(**{name: row[name] for name in names})
    most = Evidence(oom_likely=row["likely"] == row["deaths"]).having(grew)
    one = row["deaths"] == 1
    many = "1 death" if one else f"{row['deaths']:,} deaths"
    return {**row, "says": f"{many}: {sentence_of(most).rstrip('.')}{'' if one else ' at most'}"}


def _plain(text: str) -> str:
    """Return a piece of JSON as text; what was cut at a quotation mark stays as it is."""
    try:
        return str(json.loads(f'"{text}"'))
    except ValueError:
        return text
