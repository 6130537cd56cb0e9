"""The first line of each command: of a fleet that is empty, well, poisoned, half frozen."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from celery.bin.base import CLIContext
from click.testing import CliRunner

from celery_poison.cli.celery_command import poison
from tests.cli.conftest import Console
from tests.fleet.crew import frozen
from tests.outage.conftest import Site

NOBODY = "celery poison: no message 'nobody': neither in quarantine, nor given up, nor a candidate"
NEEDS_ONE = r"1 message needs a decision \(\d+ s, task fleet.segfault, SIGSEGV\)"
LISTED = "ID +TASK +CAUSE +WHERE +SIZE +AGE +ARGUMENTS"
FROZEN = r"worker w1@test/\w+ does not work \(frozen\): it was silent, so that it was taken for dead at .*"

#: Command -> a pattern of its first line, for each fleet; what a later one leaves out stays as it is.
EMPTY = {
    "status": "broken: no worker has used this ledger, or its Redis came back empty: .*",
    "ready": r"celery poison: not ready: no worker of host \S+ has reported to this ledger",
    "workers": "no worker has reported; cure: celery -A proj worker",
    "list": "nothing: no worker has used this ledger so far; see celery -A proj poison status",
    "groups": "nothing: no worker has used this ledger so far; see celery -A proj poison status",
    "incidents": "no worker has died",
    "incidents show nobody": "celery poison: nobody: no incident has that id, of the newest 1,000; .*",
    "journal tail": "the journal is empty: nothing has happened so far",
    "journal tail --deaths": "the journal has no such entry",
    "doctor": "ok +settings +namespace poison",
    "release --all --dry-run": "nothing matches",
    "fail --all --dry-run": "nothing matches",
    "discard --all --dry-run": "nothing matches",
    "restore --all --dry-run": "nothing matches",
    "purge --all --no-copy --dry-run": "nothing matches",
    "show nobody": NOBODY,
    "edit nobody --args [1]": NOBODY,
    "repro nobody": NOBODY,
}
WELL = {
    "status": "all is well: 2 workers, nothing in quarantine",
    "ready": "ready: w1@test, w2@test",
    "workers": "WORKER +STATE +BEAT +PID +POOL +SLOTS +QUEUES +NOTICED BY +STARTED",
    "list": "no messages in quarantine",
    "groups": "no messages in quarantine",
    "journal tail": r"[\d:]+ +worker w\d@test started",
}
POISONED = {
    "status": NEEDS_ONE,
    "list": LISTED,
    "groups": "CAUSE +TASK +MESSAGES +RELAPSED +OLDEST +NEWEST +GROUP",
    "incidents": "2 task processes died alone, since the ledger began: 2 SIGSEGV",
    "journal tail --deaths": r"[\d:]+ +fleet.segfault\[\w+\] killed its process by SIGSEGV on w\d@test .*",
    "release --all --dry-run": LISTED,
    "fail --all --dry-run": LISTED,
    "discard --all --dry-run": LISTED,
    "show {id}": r"fleet.segfault\[[\w-]+\]  SIGSEGV in segfault \(.*tasks.py:\d+\)",
}
HALF_FROZEN = {
    "ready": f"celery poison: not ready: {FROZEN}",
    "incidents": "INCIDENT +GONE BY +NOTICED +TOOK +CAUSE +SUSPECTS +PUT BACK +WORKER",
}


def _check(console: Console, wanted: Mapping[str, str], id: str = "") -> None:
    seen = {command: _first_line(console, command.format(id=id)) for command in wanted}
    assert not {command: line for command, line in seen.items() if not re.fullmatch(wanted[command], line)}


def _first_line(console: Console, line: str) -> str:
    """Return what a person reads first: of what is printed, else of what is said of it."""
    context = CLIContext(app=console.app, no_color=False, workdir=None)
    result = CliRunner().invoke(poison, line.split(), obj=context)
    return next(iter([*result.stdout.splitlines(), *result.stderr.splitlines()]), "")


def test_NEW_25_the_first_line_of_each_command_is_true_of_each_fleet(
    new_site: Callable[..., Site], broker_url: str
) -> None:
    site = new_site(broker_url)
    console = Console(site.app)
    _check(console, EMPTY)
    with site.worker("w1") as w1, site.worker("w2") as w2:
        w1.wait_ready()
        w2.wait_ready()
        _check(console, EMPTY | WELL)
        site.send("segfault", 1)
        site.await_that(lambda: bool(console.json("list")), "the poison is convicted")
        (record,) = console.json("list")
        _check(console, EMPTY | WELL | POISONED, record["id"])
        assert console.out("status").splitlines()[1].startswith("the last death "), "does it go on?"
        with frozen(*w1.session_pids()):
            site.await_that(
                lambda: "frozen" in {row["condition"] for row in console.json("workers")}, "it is missed"
            )
            _check(console, EMPTY | WELL | POISONED | HALF_FROZEN, record["id"])
            broken = re.compile(f"broken: {FROZEN}")
            assert any(map(broken.fullmatch, console.out("status").splitlines()[1:3])), "it comes next"
