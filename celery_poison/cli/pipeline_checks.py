"""The options of ``pipeline`` are checked before Spark starts, which takes seconds."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from re import fullmatch, search
from typing import Any
from urllib.parse import urlsplit

import click

from celery_poison.basics.parts import Finding
from celery_poison.basics.text import clean
from celery_poison.causes import is_known
from celery_poison.cli.command import WRONG_USAGE, CommandRefused
from celery_poison.errors import PoisonError

#: Commands that write what Redis holds into the lake; they make it where there is none.
_INGESTING = ("ingest", "all_of_it")
_FULL = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))
_WHERE = ", of the lake, of --out or of Spark's own files (SPARK_LOCAL_DIRS, else /tmp)"
#: Prints versions of the server that POISON_MASTER names and of PySpark here; a command line shows no token.
_VERSIONS = """
import os, pyspark
from pyspark.sql import SparkSession
print(SparkSession.builder.remote(os.environ["POISON_MASTER"]).getOrCreate().version, pyspark.__version__)
"""
#: Seconds: PySpark asks a server that does not answer again and again.
_PATIENCE = 15.0
_ANEW = "start the server anew, from this environment: docs/howto/daily-report.md"
#: Options of ``forecast``; it needs one of them.
LIMITS = ("peak", "runtime", "wait", "latency")


def check_options(name: str, options: Mapping[str, Any]) -> None:
    """Refuse what can be seen to be wrong without Spark, without Redis and without the lake's tables.

    Raises:
        Refused: the option, its value, and the cure.
    """
    if name in _INGESTING and not options.get("url"):
        raise CommandRefused(
            "which Redis? --redis redis://…, or celery -A proj poison pipeline …", WRONG_USAGE
        )
    if options.get("new") and any(options.get(name) for name in ("since", "until", "cause")):
        raise CommandRefused(
            "--new judges the whole journal: leave --since, --until and --cause out", WRONG_USAGE
        )
    if name == "forecast" and sum(options.get(each) is not None for each in LIMITS) != 1:
        raise CommandRefused(f"which limit? One of --{', --'.join(LIMITS)}, as --peak 512 (MiB)", WRONG_USAGE)
    if name == "tables" and options.get("since"):
        if not options.get("rebuild"):
            raise CommandRefused("--since: of `tables` it goes with --rebuild only", WRONG_USAGE)
        _check_day("--since", options["since"])
    checks: dict[str, Callable[[Any], None]] = {
        "since": _check_since,
        "until": _check_until,
        "cause": _check_cause,
        "out": _check_out,
        "conf": _check_conf,
    }
    for option, check in checks.items():
        if options.get(option):
            check(options[option])
    _check_lake(name, options["lake"])


def conf_of(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the Spark settings of ``--conf``."""
    return dict(text.split("=", 1) for text in options["conf"])


@contextmanager
def said_plainly() -> Iterator[None]:
    """Say in one sentence that a disk is full, in a task of Spark's too, or a file cannot be used."""
    try:
        yield
    except (PoisonError, click.ClickException):
        raise  # said already; Redis, too, may have no disk left
    except Exception as error:
        # Of a task, Java or deltalake the text alone tells it.
        full = next((each for each in _FULL if each in str(error)), "")
        if not full and not isinstance(error, OSError):
            raise
        told = full or getattr(error, "strerror", None) or str(error)
        place = getattr(error, "filename", None)
        where = f" at {place}" if place else _WHERE if full else ""
        cure = "; make room and run the command again, nothing is lost" if full else ""
        raise CommandRefused(f"{told}{where}{cure}") from error


def connect_server() -> Iterator[Finding]:
    """Yield a finding of the Spark Connect server that POISON_MASTER names; none where it names none."""
    master = os.environ.get("POISON_MASTER", "")
    if not master.startswith("sc://"):
        return
    where = f"at {urlsplit(master).hostname}, where POISON_MASTER says"
    command = [sys.executable, "-c", _VERSIONS]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        yield Finding("spark", f"no server answers {where}, within {_PATIENCE:g} s", _ANEW)
        return
    versions = ran.stdout.split()
    if len(versions) != 2:
        lines = search(r'details = "(.*)"', ran.stderr) or search(r"([^\n]*)\s*\Z", ran.stderr)
        why = clean(lines[1]) if lines else "no reason"
        yield Finding("spark", f"the server {where}, gives no version: {why}", _ANEW)
    elif versions[0] == versions[1]:
        yield Finding("spark", f"Spark {versions[0]} answers {where}")
    else:
        what = f"Spark {versions[0]} answers {where}, and here is PySpark {versions[1]}"
        yield Finding("spark", what, _ANEW)


def _check_lake(name: str, lake: str) -> None:
    if "://" in lake:
        return
    place = Path(lake)
    if place.exists() and not place.is_dir():
        raise CommandRefused(f"--lake {lake}: this is a file; a directory is wanted", WRONG_USAGE)
    if name not in _INGESTING:
        if not place.exists():
            raise CommandRefused(f"--lake {lake}: there is no such directory; `pipeline ingest` makes one")
        return
    # Made when Redis has answered: what is refused until then leaves none behind.
    there = next(each for each in (place, *place.absolute().parents) if os.path.lexists(each))
    if not there.is_dir():
        raise CommandRefused(f"--lake {lake}: the directory cannot be made: {there} is no directory")
    if not os.access(there, os.W_OK | os.X_OK):
        raise CommandRefused(f"--lake {lake}: this user may not write there")


def _check_since(text: str) -> None:
    if not fullmatch(r"\d{1,4}d", text):
        _check_day("--since", text)


def _check_until(text: str) -> None:
    _check_day("--until", text)


def _check_day(option: str, text: str) -> None:
    try:
        date.fromisoformat(text)
    except ValueError:
        raise CommandRefused(f"{option} {text}: a day is wanted, as 2026-03-02, or 7d", WRONG_USAGE) from None


def _check_cause(text: str) -> None:
    if not is_known(text):
        raise CommandRefused(
            f"--cause {text}: no such cause; oom, signal:9, exit:1, time_limit or worker_lost are some:"
            " docs/journal.md lists all",
            WRONG_USAGE,
        )


def _check_out(page: Path) -> None:
    folder = page.resolve().parent
    if not folder.is_dir():
        raise CommandRefused(f"--out {page}: there is no directory {folder}", WRONG_USAGE)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise CommandRefused(f"--out {page}: this user may not write there")


def _check_conf(settings: tuple[str, ...]) -> None:
    for text in settings:
        if "=" not in text:
            raise CommandRefused(f"--conf {text}: NAME=VALUE is wanted", WRONG_USAGE)
