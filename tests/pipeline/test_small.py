"""A small history: what Spark's tasks do for a large one, the command does itself (NEW-7)."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from examples.histories import World, write_lake

#: Two whole reports; in every run the command's own tests have a small history.
pytestmark = pytest.mark.matrix


def test_NEW_7_the_command_itself_reports_to_the_byte_what_tasks_report(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from celery_poison.cli import pipeline_commands as commands
    from celery_poison.pipeline import session, sink
    from celery_poison.pipeline.derived import Derived
    from celery_poison.pipeline.lake import Lake

    write_lake(World(attempts=8_000, days=4, deploy_every_days=2), tmp_path / "whole")
    done, here = list[int](), sink._here
    opened, read = list[tuple[str, tuple[Any, ...]]](), sink.read_here

    def counted(*words: Any) -> Any:
        done.append(len(done))
        return here(*words)

    def read_once(session: Any, uri: str, files: Any, schema: Any) -> Any:
        opened.append((uri, tuple(files)))
        return read(session, uri, files, schema)

    monkeypatch.setattr(sink, "_here", counted)
    monkeypatch.setattr(sink, "read_here", read_once)
    conf = {name: spark.conf.get(name, None) for name in session._FEW}
    told = []
    try:
        for tasks in ("true", "false"):
            place = tmp_path / tasks
            shutil.copytree(tmp_path / "whole", place, copy_function=os.link)
            session.suit(spark, 8_000, () if tasks == "false" else ["spark.poison.tasks"])
            lake = Lake(spark, str(place))
            page = commands.learn(Derived(spark, lake), {"out": tmp_path / f"{tasks}.html"})
            told.append((page.read_bytes(), page.with_suffix(".json").read_bytes()))
            assert bool(done) == (tasks == "false")
    finally:
        for name, value in conf.items():
            spark.conf.unset(name) if value is None else spark.conf.set(name, value)
    assert told[0] == told[1]
    assert len({uri for uri, _ in opened}) > 4  # the journal's troubles and the tables made of them
    assert len(opened) == len(set(opened)), "each is read once in a command"
