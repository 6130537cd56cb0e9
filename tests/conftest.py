"""Servers for the whole run, a fresh corner of them for each test."""

from __future__ import annotations

import gc
import itertools
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from celery_poison.testing import RedisServer, Worker, find_redis_binary
from tests import split
from tests.apps.factory import keep_extensions
from tests.harness import preloaded
from tests.harness.compiled import compile_share
from tests.harness.declared import watched
from tests.harness.servers import RabbitServer, SharedRabbit, end_shared
from tests.services import (
    VhostPool,
    need,
    pytest_make_collect_report,
    pytest_runtest_makereport,
    pytest_terminal_summary,
    use_named_rabbitmq,
)

__all__ = ["pytest_make_collect_report", "pytest_runtest_makereport", "pytest_terminal_summary"]

keep_extensions(os.environ)

# How long an example takes is the machine's affair, which may be busy.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

Worker.popen = preloaded.of_workers()

Build = Callable[..., Any]


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    need(find_redis_binary() is not None, "redis-server")
    with RedisServer(options={"databases": 10_000}) as server:
        yield server


@pytest.fixture(scope="session")
def rabbit_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RabbitServer]:
    """One for all processes of the run, each of which has virtual hosts of its own: a start takes longer than
    most tests. Who stops or pauses a RabbitMQ starts one of its own."""
    need(RabbitServer.available(), "RabbitMQ")
    if hasattr(request.config, "workerinput"):
        yield SharedRabbit(tmp_path_factory.getbasetemp().parent / "rabbitmq")
        return
    with RabbitServer() as server:
        yield server


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """End what the processes of this run have shared: by now xdist has ended them."""
    if not hasattr(session.config, "workerinput"):
        split.note_passed(session.config)
        end_shared(session.config._tmp_path_factory.getbasetemp() / "rabbitmq")  # type: ignore[attr-defined]


@pytest.fixture(scope="session")
def _databases() -> Iterator[int]:
    return itertools.count(1)


@pytest.fixture(scope="session")
def _vhosts(rabbit_server: RabbitServer) -> VhostPool:
    return VhostPool(rabbit_server, os.environ.get("PYTEST_XDIST_WORKER", ""))


@pytest.fixture
def new_redis_url(redis_server: RedisServer, _databases: Iterator[int]) -> Callable[[], str]:
    """Each call gives the URL of a Redis database that nobody has used yet."""
    return lambda: redis_server.url(next(_databases))


@pytest.fixture
def redis_url(new_redis_url: Callable[[], str]) -> str:
    """An empty Redis database."""
    return new_redis_url()


@pytest.fixture(scope="session", autouse=True)
def _watched_scripts() -> Iterator[None]:
    """No script reaches a key that it does not name, except those of which that is known (NEW-24)."""
    with watched():
        yield


@pytest.fixture(scope="session")
def tls_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    from tests.tls.server import Authority, TlsRedisServer, speaks_tls

    need(speaks_tls(), "a redis-server that speaks TLS")
    with TlsRedisServer(Authority(tmp_path_factory.mktemp("tls")), options={"databases": 1000}) as server:
        yield server


@pytest.fixture
def tls_url(tls_server: RedisServer, _databases: Iterator[int]) -> str:
    """An empty database of a Redis that speaks TLS."""
    return tls_server.url(next(_databases))


@pytest.fixture
def unix_url(new_server: Callable[..., RedisServer]) -> str:
    """An empty database of a Redis that is reached by a Unix socket alone, as Celery spells it."""
    server = new_server(unixsocket="redis.sock")
    return f"redis+socket://{server.directory}/redis.sock?virtual_host=3"


@pytest.fixture
def rabbit_url(rabbit_server: RabbitServer, _vhosts: VhostPool) -> str:
    """An empty RabbitMQ virtual host."""
    return rabbit_server.url(_vhosts.take())


@pytest.fixture
def broker_url(request: pytest.FixtureRequest) -> str:
    """Redis, unless a test asks for another: rabbitmq, or a Redis by TLS (tls) or Unix socket (unix).

    `@pytest.mark.parametrize("broker_url", ["redis", "rabbitmq"], indirect=True)` asks for both in turn.
    """
    name = getattr(request, "param", "redis")
    return str(request.getfixturevalue(f"{name.replace('mq', '')}_url"))


@pytest.fixture
def assemble(new_redis_url: Callable[[], str], tmp_path: Path) -> Iterator[Build]:
    """A function that makes a fleet of some kind from a broker's URL and Celery settings; none of its
    processes outlives the test. Beside a Redis broker the plugin finds its ledger by itself."""
    fleets: list[Any] = []

    def build(kind: type, broker_url: str, *, backend_url: str = "", **settings: Any) -> Any:
        directory = tmp_path / f"fleet{len(fleets)}"
        directory.mkdir()
        fleet = kind(
            broker_url=broker_url,
            backend_url=backend_url or new_redis_url(),
            marks_url=new_redis_url(),
            ledger_url=None if broker_url.startswith(("redis", "sentinel")) else new_redis_url(),
            directory=directory,
            settings=settings,
        )
        fleets.append(fleet)
        return fleet

    yield build
    for fleet in fleets:
        fleet.close()


@pytest.fixture
def new_fleet(assemble: Build) -> Build:
    """A function that makes an ordinary fleet: see `assemble`."""
    from tests.apps.harness import Fleet

    return partial(assemble, Fleet)


@pytest.fixture
def fleet(new_fleet: Build, broker_url: str) -> Any:
    """The ordinary fleet: see `broker_url` and `new_fleet`."""
    return new_fleet(broker_url)


@pytest.fixture
def keeper(fleet: Any) -> Iterator[Any]:
    """A keeper beside the fleet."""
    from tests.desk.keeping import Keeper

    keeper = Keeper(fleet.app)
    keeper.sign()
    yield keeper
    keeper.close()


@pytest.fixture
def new_server() -> Iterator[Callable[..., RedisServer]]:
    """A function that starts a Redis of the test's own, to be filled, cut off or killed."""
    with ExitStack() as servers:
        yield lambda binary=None, **options: servers.enter_context(RedisServer(binary, options))


def pytest_configure(config: pytest.Config) -> None:
    """A cancelled CI job gets SIGTERM, which would end Python on the spot and leave servers and workers
    running; as an interrupt it unwinds the fixtures first."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    compile_share(config)
    use_named_rabbitmq()
    split.take_whole_what_is_named(config)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import files of which all has passed in an earlier run."""
    name = collection_path.relative_to(config.rootpath).as_posix() if collection_path.suffix == ".py" else ""
    return True if name and name in _passed() else None


_passed = cache(split.passed)

#: The first that a test uses decides when it runs; what uses none of them runs first.
_SLOWNESS = ("docker_client", "cell", "new_fleet", "rabbit_server", "redis_server")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let one process run all tests with a Spark session: one for each would cost more than it saves.

    Other files of the pipeline run as a whole, for what is made once in a file. Not by xdist's groups: with
    pytest 9.2 they group nothing.
    """
    from xdist.scheduler import LoadScopeScheduling

    @cache
    def has_session(path: str) -> bool:
        return "spark: Any" in (config.rootpath / path).read_text(encoding="utf-8")

    class OneForSpark(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.partition("::")[0]
            if not path.startswith("tests/pipeline/"):
                return nodeid
            return "spark" if has_session(path) else path

    return OneForSpark(config, log)


def pytest_collection_finish() -> None:
    """Leave thousands of collected tests out of every later collection of garbage, of which each fleet makes
    one when it closes."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Fast tests first: a mistake shows within seconds, not behind minutes of process killing."""
    split.mark_rest(items)
    split.leave_out_passed(config, items)

    def slowness(item: pytest.Item) -> int:
        used = getattr(item, "fixturenames", ())
        return next((len(_SLOWNESS) - i for i, name in enumerate(_SLOWNESS) if name in used), 0)

    items.sort(key=slowness)
