"""A Django shop under load, its broker away for a while: no order without its message, nor the reverse.

The shop is examples/django_shop, run as its owner would: `manage.py migrate`, `celery -A shop worker`, and
several processes that place orders.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from celery_poison.testing import RedisServer, Worker, wait_until
from tests.harness.postgres import USER, PostgresServer
from tests.harness.servers import RabbitServer

PROJECT = Path(__file__).parents[2] / "examples" / "django_shop"
#: What was answered is in the kernel's hands, and survives the server.
SAFE = {"appendonly": "yes", "appendfsync": "no"}
SHOPPERS = 3
WRONG = ("orders_without_message", "messages_without_order", "charged_again")


def stage(stack: ExitStack, broker: str, database: str) -> tuple[Any, dict[str, str]]:
    """Start servers; return the broker, and the environment of the shop."""
    directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="poison-shop-"))
    ledger = stack.enter_context(RedisServer(options=SAFE))
    server: Any = ledger if broker == "redis" else stack.enter_context(RabbitServer())
    env = {
        "SHOP_BROKER": server.url(),
        "SHOP_LEDGER": ledger.url(),
        "SHOP_DATABASE": f"{directory}/shop.sqlite3",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    if database == "postgresql":
        postgres = stack.enter_context(PostgresServer())
        env |= {"PGHOST": "127.0.0.1", "PGPORT": str(postgres.port), "PGUSER": USER}
        env["SHOP_DATABASE"] = database
    return server, env


def manage(env: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "manage.py", *arguments],
        cwd=PROJECT,
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        text=True,
    )


def totals(env: dict[str, str]) -> dict[str, int]:
    told, _ = manage(env, "place_orders", "--count", "0").communicate()
    return dict(json.loads(told)["in_the_database"])


@contextmanager
def shoppers(env: dict[str, str]) -> Iterator[list[dict[str, Any]]]:
    """Let some processes place orders; what each of them counted is there afterwards."""
    found: list[dict[str, Any]] = []
    started = [manage(env, "place_orders", "--count", "-1") for _ in range(SHOPPERS)]
    try:
        yield found
    finally:
        for each in started:
            each.terminate()
        found += [json.loads(each.communicate()[0]) for each in started]


def run(broker: str, database: str, how: str, away: float) -> dict[str, Any]:
    with ExitStack() as stack:
        server, env = stage(stack, broker, database)
        assert manage(env, "migrate", "--verbosity", "0").wait() == 0
        worker = stack.enter_context(Worker("shop", cwd=PROJECT, env=env, defaults=True))
        worker.wait_ready()
        with shoppers(env) as counted:
            time.sleep(away / 6)
            before = totals(env)["orders"]
            server.kill() if how == "kill" else server.pause()
            time.sleep(away)
            during = totals(env)
            server.start() if how == "kill" else server.resume()
            time.sleep(away / 6)
        back = time.monotonic()
        try:
            wait_until(lambda: not totals(env)["orders_without_message"], timeout=300, interval=0.5)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{worker.log_text()[-4000:]}") from None
        took = time.monotonic() - back
        time.sleep(6.0)  # a second copy that waited comes back within that
        after = totals(env)
    return {
        "broker": broker,
        "database": database,
        "how": how,
        "away_s": away,
        "placed": sum(each["placed"] for each in counted),
        "sold_out": sum(each["sold_out"] for each in counted),
        "slowest_ms": max(each["slowest_ms"] for each in counted),
        "orders_meanwhile": during["orders"] - before,
        "unpaid_at_its_end": during["orders_without_message"],
        "caught_up_s": round(took, 1),
        **after,
        "good": after["orders"] == sum(each["placed"] for each in counted)
        and not any(after[each] for each in WRONG),
    }
