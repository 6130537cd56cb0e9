"""Makes the table of docs/versions.md: the tests with each Celery, Python, Redis and RabbitMQ of CELLS.

    tox -e table -- --redis /opt/valkey/bin/valkey-server --rabbitmq /opt/rabbitmq/sbin

Each cell runs in the tox environment of its Python and Celery. Pythons are found by tox; servers on the
PATH, and others where the options say. The row of a cell whose Python or server is not here, or that `--only`
leaves out, stays as it is.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "versions.md"
BEGIN, END = "<!-- table begins -->\n", "<!-- table ends -->\n"
#: Found at run time, the day, and how many tests.
COLUMNS = ("Python", "Celery", "kombu", "billiard", "redis-py", "Redis", "RabbitMQ", "run on")
COUNTS = ("passed", "failed", "skipped")
#: Debian's RabbitMQ, whose `rabbitmq-server` on the PATH is another script.
RABBITMQ = "/usr/lib/rabbitmq/bin"
NOT_RUN = "not run"


class Cell(NamedTuple):
    """What a cell runs with: beginnings of versions. ``store`` is the server of broker and ledger."""

    python: str
    celery: str
    store: str
    rabbitmq: str

    @property
    def environment(self) -> str:
        """The name of its tox environment."""
        return f"py{self.python}-celery{self.celery}".replace(".", "")


#: Every value of each axis, oldest first; Valkey last, so that Redis is what the others run with.
PYTHON = ("3.11", "3.12", "3.13", "3.14")
CELERY = ("5.5", "5.6", "5.7")
STORE = ("Redis 6.2", "Redis 7.0", "Redis 8", "Valkey 9")
RABBIT = ("3.10", "4")
OLDEST = Cell(PYTHON[0], CELERY[0], STORE[0], RABBIT[0])
NEWEST = Cell(PYTHON[-1], CELERY[-1], "Redis 8", RABBIT[-1])
#: Debian has it, without a newer Redis.
YOUNGEST = NEWEST._replace(python="3.15", store="Redis 7.0")
#: The oldest and the newest of everything, the newest with one thing otherwise, and the youngest Python.
CELLS = list(
    dict.fromkeys(
        [
            OLDEST,
            *(NEWEST._replace(celery=celery) for celery in CELERY),
            *(NEWEST._replace(python=python) for python in PYTHON),
            *(NEWEST._replace(store=store) for store in STORE),
            *(NEWEST._replace(rabbitmq=rabbitmq) for rabbitmq in RABBIT),
            YOUNGEST,
        ]
    )
)


class Server(NamedTuple):
    """One that is here: "Redis 7.0.15", and its program, or the folder of RabbitMQ's scripts."""

    name: str
    path: str


def is_of(found: str, wanted: str) -> bool:
    """Whether a version, maybe with a name before it, begins as ``wanted``: 8.0.6 is of 8, and not of 8.1."""
    return f"{found}.".startswith(f"{wanted}.")


# --- what is here -----------------------------------------------------------------------------------------


def redis_at(path: str) -> Server:
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"(Redis|Valkey) server v=([\d.]+)", said)
    if found is None:
        raise SystemExit(f"{path} is no redis-server: {said}")
    return Server(f"{found[1]} {found[2]}", path)


def rabbitmq_at(folder: str) -> Server:
    path = str((Path(folder) / "rabbitmqctl").resolve(strict=True))
    found = re.search(r"rabbitmq_server-([\d.]+)/", path)  # to ask itself starts an Erlang that stays
    if found is None:
        raise SystemExit(f"{path} is in no folder rabbitmq_server-<version>")
    return Server(f"RabbitMQ {found[1]}", folder)


def servers(redis: Iterable[str], rabbitmq: Iterable[str]) -> list[Server]:
    """Return those that are named, and those that are installed."""
    installed = shutil.which("redis-server")
    stores = [*redis, installed] if installed else redis
    folders = [*rabbitmq, RABBITMQ] if Path(RABBITMQ).is_dir() else rabbitmq
    return [*map(redis_at, stores), *map(rabbitmq_at, folders)]


# --- running ----------------------------------------------------------------------------------------------


def row(cell: Cell, here: Sequence[Server]) -> str | None:
    """Run a cell and return its row; None where something that it wants is not here."""
    found = {
        wanted: next((server for server in here if is_of(server.name, wanted)), None)
        for wanted in (cell.store, f"RabbitMQ {cell.rabbitmq}")
    }
    store, rabbit = found.values()
    if store is None or rabbit is None:
        return _missing(cell, *(wanted for wanted, server in found.items() if server is None))
    with tempfile.TemporaryDirectory(prefix="poison-versions-") as folder:
        environ = _environ(Path(folder), store, rabbit)
        report = Path(folder) / "report.xml"
        _say(f"=== {' '.join(cell)}")
        _tox(cell, environ, "run", "--", "tests/versions", f"--junitxml={report}")
        if not report.exists():
            return _missing(cell, f"Python {cell.python}, or what tox installs")
        packages = _packages(cell, environ)
        counts = _counts(report)
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    return _line([*packages, store.name, rabbit.name.split()[-1], today, *map(str, counts)])


def _missing(cell: Cell, *what: str) -> None:
    _say(f"{NOT_RUN}: {' '.join(cell)}: not here: {', '.join(what)}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def _environ(folder: Path, store: Server, rabbit: Server) -> dict[str, str]:
    (folder / "redis-server").symlink_to(Path(store.path).absolute())
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("TOX_", "VIRTUAL_"))}
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return environ | {"PATH": path, "POISON_TEST_RABBITMQ": rabbit.path}


def _tox(cell: Cell, environ: Mapping[str, str], *arguments: str, output: int | None = None) -> str:
    tox = [sys.executable, "-m", "tox", *arguments[:1], "-q", "-e", cell.environment, *arguments[1:]]
    # pytest's status says that something failed; so does the row.
    return subprocess.run(tox, cwd=ROOT, env=environ, stdout=output, text=True).stdout


_VERSIONS = """
from importlib.metadata import version; from platform import python_version
print("versions", python_version(), *map(version, ("celery", "kombu", "billiard", "redis")))
"""


def _packages(cell: Cell, environ: Mapping[str, str]) -> list[str]:
    said = _tox(cell, environ, "exec", "--", "python", "-c", _VERSIONS, output=subprocess.PIPE)
    (line,) = [line for line in said.splitlines() if line.startswith("versions ")]
    return line.split()[1:]


def _counts(report: Path) -> tuple[int, int, int]:
    """Return how many tests passed, failed and were skipped."""
    suites = [*ElementTree.parse(report).getroot().iter("testsuite")]
    total, bad, skipped = (
        sum(int(suite.get(name, 0)) for suite in suites for name in names)
        for names in (("tests",), ("failures", "errors"), ("skipped",))
    )
    return total - bad - skipped, bad, skipped


# --- the page ---------------------------------------------------------------------------------------------


def _line(values: Iterable[str]) -> str:
    return f"| {' | '.join(values)} |\n"


def untried(cell: Cell) -> str:
    """The row of a cell that was never run."""
    return _line([cell.python, cell.celery, "", "", "", cell.store, cell.rabbitmq, NOT_RUN, "", "", ""])


def belongs(line: str, cell: Cell) -> bool:
    """Whether a row of the page is that of ``cell``."""
    python, celery, _, _, _, store, rabbit, *_ = [value.strip() for value in line.split("|")[1:-1]]
    return all(map(is_of, (python, celery, store, rabbit), cell))


def parts(page: str) -> tuple[str, list[str], str]:
    """What stands before the table, its rows, and what stands after it."""
    before, rest = page.split(BEGIN)
    shown, after = rest.split(END)
    return before, shown.splitlines(keepends=True)[2:], after


def write(cell: Cell, line: str) -> None:
    """Put the row of ``cell`` into the page."""
    before, rows, after = parts(PAGE.read_text(encoding="utf-8"))
    known = {old: row for old in CELLS for row in rows if belongs(row, old)} | {cell: line}
    body = "".join(known.get(each, untried(each)) for each in CELLS)
    columns = COLUMNS + COUNTS
    head = _line(columns) + "|---" * len(columns) + "|\n"
    PAGE.write_text(f"{before}{BEGIN}{head}{body}{END}{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--redis", action="append", default=[], help="a redis-server or valkey-server")
    parser.add_argument("--rabbitmq", action="append", default=[], help="a folder of RabbitMQ's scripts")
    parser.add_argument(
        "--only", default="", help="only cells of which this is a part: py314-celery55, Valkey"
    )
    chosen = parser.parse_args()
    here = servers(chosen.redis, chosen.rabbitmq)
    for cell in CELLS:
        if chosen.only in f"{cell.environment} {' '.join(cell)}" and (line := row(cell, here)):
            write(cell, line)


if __name__ == "__main__":
    main()
