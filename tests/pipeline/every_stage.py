"""Runs every stage after the ingest in one session, and prints what they print as one JSON object.

python -m tests.pipeline.every_stage MASTER REDIS LAKE
"""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from celery_poison.cli import pipeline_commands as commands
from celery_poison.cli.pipeline_publish import publish
from celery_poison.pipeline.lake import Lake
from celery_poison.pipeline.session import open_session

STAGES: dict[str, Any] = {
    "blame": commands.blame,
    "all": commands.all_of_it,
    "backtest": commands.backtest,
    "publish": publish,
}


def main(master: str, url: str, place: str) -> None:
    options: dict[str, Any] = {"url": url, "as_json": True, "top": 50, "out": Path(place) / "report.html"}
    options |= {"weight": 10.0, "least": 2, "hours": 1.0, "actor": "tests", "max_age": 1e6}
    session = open_session(master)
    told: dict[str, Any] = {}
    for name, stage in STAGES.items():
        out = StringIO()
        with redirect_stdout(out):
            stage(session, Lake(session, place), options)
        told[name] = json.loads(out.getvalue())
    sys.stdout.write(json.dumps(told))
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
