"""The first line of each command: of a fleet that is empty, well, poisoned, half frozen."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping

from celery.bin.base import CLIContext
from click.testing import CliRunner, Result

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
    "list --candidates": "nothing: no worker has used this ledger so far; .*",
    "list --state FAIL": "nothing: no worker has used this ledger so far; .*",
    "restore nobody": "refused  nobody: no message 'nobody': .*",
    "export --all": "nothing matched",
    "policy get": "TASK .*",
    "block --list": "nothing is blocked",
    "hold list": "nothing is held by value",
    "gate show": "open",
    "outbox list": "nothing",
    "outbox status": "nothing waits to be sent",
    "journal export": "0 entries written",
    "unblock --task fleet.healthy": "celery poison: task fleet.healthy is not blocked",
    "resume --task fleet.healthy": "celery poison: task fleet.healthy is not paused",
    "hold lift 1": "celery poison: there is no hold 1: `hold list` shows them",
    "outbox show 1": "celery poison: no message 1 in the outbox: it was sent, or dropped",
}
WELL = {
    "status": "all is well: 2 workers, nothing in quarantine",
    "ready": "ready: w1@test, w2@test",
    "workers": "WORKER +STATE +BEAT +PID +POOL +SLOTS +QUEUES +NOTICED BY +STARTED",
    "list": "no messages in quarantine",
    "groups": "no messages in quarantine",
    "journal tail": r"[\d:]+ +worker w\d@test started",
    "journal export": r'{"at": .*',
    "list --candidates": "no candidates",
    "list --state FAIL": "no messages in state FAIL",
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
    "export --all": r'{"v": 1, .*',
    "show {id}": r"fleet.segfault\[[\w-]+\]  SIGSEGV in segfault \(.*tasks.py:\d+\)",
}
HALF_FROZEN = {
    "ready": f"celery poison: not ready: {FROZEN}",
    "incidents": "INCIDENT +GONE BY +NOTICED +TOOK +CAUSE +SUSPECTS +PUT BACK +WORKER",
}


def _check(console: Console, wanted: Mapping[str, str], id: str = "") -> None:
    seen = {command: _first_line(console, command.format(id=id)) for command in wanted}
    assert not {command: line for command, line in seen.items() if not re.fullmatch(wanted[command], line)}


#: What one death of a worker adds, once the frozen one is back.
ONE_DEAD = {
    "ready": "ready: w1@test",
    "show w2@test": f"{NOBODY.replace('nobody', 'w2@test')}; a worker of that name died: .* show w2@test",
    "incidents show w2@test": r"\w+  worker_lost: worker w2@test/\w+",
}
#: Verbs that only read; of the others it is asked whether the message is there.
READING = {"status", "workers", "list", "show", "groups", "incidents", "journal", "doctor", "hold", "block"}
COMMAND = re.compile(r"celery -A proj poison (.*?)(?=  |$|[;)`])", re.MULTILINE)


def _follow(console: Console, *begin: str) -> dict[str, str]:
    """Type each reading command, and each that its output names, and so on; return what was refused."""
    todo, seen, refused = [*begin], set[str](), dict[str, str]()
    while todo:
        line = todo.pop()
        words = shlex.split(line)
        if words[0] not in READING or (words[0] == "block" and "--list" not in words):
            words = ["show", words[-1]]
        if (typed := shlex.join(words)) in seen:
            continue
        seen.add(typed)
        result = _run(console, typed)
        if result.exit_code not in (0, 1) or result.stderr.startswith("celery poison: "):
            refused[line] = result.stderr
        todo += COMMAND.findall(f"{result.stdout}\n{result.stderr}")
    assert len(seen) > len(begin), "none names another"
    return refused


def _run(console: Console, line: str) -> Result:
    context = CLIContext(app=console.app, no_color=False, workdir=None)
    return CliRunner().invoke(poison, shlex.split(line), obj=context)


def _first_line(console: Console, line: str) -> str:
    """Return what a person reads first: of what is printed, else of what is said of it."""
    result = _run(console, line)
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
        site.await_that(lambda: "w1" in site.known_workers(), "it is back")
        w2.kill_group()
        site.await_that(
            lambda: site.quarantine.queries.incidents()[0].worker.startswith("w2@"), "it is missed"
        )
        _check(console, EMPTY | WELL | POISONED | HALF_FROZEN | ONE_DEAD, record["id"])
        assert re.search(r"worker w2@test died \d+ s ago", console.out("status").splitlines()[1])
        assert re.search(r"w2@test died at .*\n  celery .* incidents show \w+\n", console.out("workers"))
        reading = {*WELL, *POISONED, "incidents show w2@test", "doctor"}
        begin = [line.format(id=record["id"]) for line in reading if line.split()[0] in READING]
        assert not _follow(console, *begin)
