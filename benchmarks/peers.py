"""Other task queues and one poison: it kills before twenty healthy tasks, under a supervisor, for a minute.

What came of it is in docs/comparison.md; README.md beside this file tells what is done.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from celery_poison.testing import RedisServer, find_redis_binary
from celery_poison.testing.servers import Server, free_ports
from tests.harness.postgres import PostgresServer, find_binaries
from tests.harness.servers import RabbitServer

APPS = Path(__file__).resolve().parent / "peers"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "celery_poison" / "peers"
MARKS = "marks"
#: Seconds between a worker's end and its next start, and until the first task starts.
RESTART_DELAY, PATIENCE = 0.5, 120.0
HEALTHY = [f"h{number}" for number in range(20)]


@dataclass(frozen=True)
class Peer:
    """One row: a peer with its best options.

    Attributes:
        install: what pip installs, pinned; empty: this environment is used.
        app: the module in peers/; ``kind``: which of those that it is.
        server: redis, rabbitmq, postgresql, sqs or sqlite.
        python: another interpreter than this one, on the PATH.
        worker: its command; ``{bin}``: its environment's programs, ``{verb}``: runs a verb of the app.
        best: further arguments of the worker with the best options.
        option: the best options, as the table names them.
        kills: what the poison kills: its own process, or with it all processes of the worker.
    """

    name: str
    title: str
    install: str
    app: str
    server: str
    kind: str
    kills: str
    python: str
    worker: str
    best: str
    option: str


def read_peers() -> list[Peer]:
    """Return the rows of peers/peers.csv, one for each peer and way of dying."""
    with (APPS / "peers.csv").open(encoding="utf-8", newline="") as file:
        return [Peer(**row) for row in csv.DictReader(file, delimiter="|")]


PEERS = read_peers()


@dataclass
class Row:
    """What came of one peer; ``skipped`` says why nothing did."""

    name: str
    best: bool
    starts: int = 0
    workers_lost: int = 0
    healthy_done: int = 0
    healthy_twice: int = 0
    fate: str = ""
    skipped: str = ""


class Skipped(Exception):
    """Something that the peer needs is not there."""


class SqsServer(Server):
    """moto's server of one environment, which plays SQS."""

    title = "SQS"

    def __init__(self, programs: Path) -> None:
        super().__init__()
        self._programs, (self.port,) = programs, free_ports()

    def _launch(self) -> subprocess.Popen[bytes]:
        return self._spawn(str(self._programs / "moto_server"), "-p", str(self.port))

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{self.port}/moto-api/"):
            return True
        return False


@contextlib.contextmanager
def serving(peer: Peer, programs: Path, folder: Path) -> Iterator[str]:
    """Yield the URL of a private server of the kind that the peer wants."""
    if peer.server == "redis":
        _need(find_redis_binary(), "Redis")
        with RedisServer() as redis:
            yield f"{'valkey' if peer.kind == 'plus' else 'redis'}://127.0.0.1:{redis.port}/0"
    elif peer.server == "rabbitmq":
        _need(RabbitServer.available(), "RabbitMQ")
        with RabbitServer() as rabbit:
            yield rabbit.url()
    elif peer.server == "postgresql":
        _need(find_binaries(), "PostgreSQL")
        with PostgresServer() as postgres:
            yield f"postgresql://postgres@127.0.0.1:{postgres.port}/postgres"
    elif peer.server == "sqs":
        with SqsServer(programs) as sqs:
            yield f"sqs://testing:testing@127.0.0.1:{sqs.port}//"
    else:
        yield f"sqla+sqlite:///{folder}/queue.db"


def _need(what: object, name: str) -> None:
    if not what:
        raise Skipped(f"{name} is not installed")


def environment(peer: Peer, cache: Path) -> Path:
    """Return the folder of the programs of the peer's own environment, made if it is not there."""
    if not peer.install:
        return Path(sys.executable).parent
    home = cache / peer.install.translate(str.maketrans(" [],=", "-----"))
    if not (home / "installed").exists():
        python = shutil.which(peer.python or "python3") if peer.python else sys.executable
        _need(python, peer.python)
        pip = [str(home / "bin" / "pip"), "install", "--quiet", *peer.install.split()]
        for command in ([str(python), "-m", "venv", "--clear", str(home)], pip):
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise Skipped(f"{' '.join(command)}: {done.stderr.strip()[-200:]}")
        (home / "installed").touch()
    return home / "bin"


def play(peer: Peer, *, best: bool, seconds: float, cache: Path) -> Row:
    """Send the poison and the healthy ones, keep the worker alive for ``seconds``, and count."""
    programs = environment(peer, cache)
    with tempfile.TemporaryDirectory(prefix="poison-peers-") as scratch, contextlib.ExitStack() as stack:
        folder = Path(scratch)
        url = stack.enter_context(serving(peer, programs, folder))
        marks, log = folder / MARKS, stack.enter_context((folder / "log").open("ab"))
        env = {**os.environ, "PEER_URL": url, "PEER_BEST": "1" if best else "", "PEER_KILLS": peer.kills}
        env |= {"PEER_MARKS": str(marks), "PEER_KIND": peer.kind, "PYTHONPATH": str(APPS)}

        def verb(name: str) -> str:
            command = [str(programs / "python"), str(APPS / "peer.py"), peer.app, name]
            done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=120)
            if done.returncode:
                raise RuntimeError(f"{peer.name}: {name}: {done.stderr[-2000:]}")
            return (done.stdout.strip().splitlines() or [""])[-1]

        verb("send")
        asked = f"{programs / 'python'} {APPS / 'peer.py'} {peer.app}"
        command = f"{peer.worker} {peer.best if best else ''}".format(bin=programs, verb=asked, url=url)
        lost = _supervise(shlex.split(command), env, folder, log, seconds)
        lines = Counter(marks.read_text().split("\n") if marks.exists() else [])
        return Row(
            peer.name,
            best,
            starts=lines["start poison"],
            workers_lost=lost,
            healthy_done=sum(lines[f"end {name}"] > 0 for name in HEALTHY),
            healthy_twice=sum(lines[f"start {name}"] > 1 for name in HEALTHY),
            fate=verb("fate"),
        )


def _supervise(command: list[str], env: dict[str, str], folder: Path, log: IO[bytes], seconds: float) -> int:
    """Run the command again whenever it ends, until ``seconds`` after the first start of a task; count."""
    until, lost, marks = time.monotonic() + PATIENCE, 0, folder / MARKS
    began = False
    while True:
        worker = subprocess.Popen(
            command, env=env, cwd=folder, stdout=log, stderr=log, start_new_session=True
        )
        while worker.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
            if not began and marks.exists():
                began, until = True, time.monotonic() + seconds
        lost += worker.poll() is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
        if time.monotonic() + RESTART_DELAY >= until:
            return lost
        time.sleep(RESTART_DELAY)


def table(rows: list[Row]) -> str:
    """Return the table of docs/comparison.md."""
    by_name = {peer.name: peer for peer in PEERS}
    lines = ["| | option | starts | workers lost | done | the poison |", "|---|---|---|---|---|---|"]
    for row in rows:
        peer = by_name[row.name]
        option = (row.best and peer.option) or "-"
        title = peer.title + ", its process" * (peer.kills == "process")
        cells = [title, option, row.starts, row.workers_lost, row.healthy_done, row.fate]
        if row.skipped:
            cells[2:] = ["", "", "", f"skipped: {row.skipped}"]
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    names = [peer.name for peer in PEERS]
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument(
        "peer", nargs="*", choices=[*names, []], metavar="PEER", help=f"all of {', '.join(names)}"
    )
    made.add_argument("--seconds", type=float, default=60.0, help="for which each is watched (60)")
    made.add_argument("--defaults", action="store_true", help="without the best options")
    made.add_argument("--cache", type=Path, default=CACHE, help=f"folder of the environments ({CACHE})")
    made.add_argument("--json", type=Path, help="a file for the figures, or with them where it exists")
    return made


def main() -> None:
    args = parser().parse_args()
    chosen = [peer for peer in PEERS if peer.name in args.peer or not args.peer]
    stored = json.loads(args.json.read_text()) if args.json and args.json.exists() else []
    rows = {row["name"]: Row(**row) for row in stored}
    for peer in chosen:
        if peer.name in rows and not args.peer:
            continue  # an earlier run had it
        try:
            row = play(peer, best=not args.defaults, seconds=args.seconds, cache=args.cache)
        except (Skipped, RuntimeError, subprocess.TimeoutExpired) as reason:
            row = Row(peer.name, not args.defaults, skipped=str(reason))
        rows[peer.name] = row
        print(json.dumps(asdict(row)), file=sys.stderr, flush=True)
        if args.json:
            args.json.write_text(json.dumps([asdict(each) for each in rows.values()], indent=1))
    print(table([rows[peer.name] for peer in PEERS if peer.name in rows]))


if __name__ == "__main__":
    main()
