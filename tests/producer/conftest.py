"""An app whose tasks are published through the outbox, and a relay that a test turns by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.django_once import alias
from tests.harness.postgres import PostgresServer, find_binaries
from tests.producer.kit import Shop
from tests.producer.orders import ALIAS, DjangoOrders, Orders, SqlOrders
from tests.services import need


@pytest.fixture
def new_shop(new_redis_url: Callable[[], str]) -> Iterator[Callable[..., Shop]]:
    """A function that makes a shop from a broker's URL (default: the ledger's own database) and settings."""
    with ExitStack() as shops:

        def build(broker_url: str = "", **settings: Any) -> Shop:
            ledger_url = new_redis_url()
            shop = Shop(broker_url or ledger_url, ledger_url, **settings)
            shops.callback(shop.close)
            return shop

        yield build


@pytest.fixture
def shop(new_shop: Callable[..., Shop], broker_url: str) -> Shop:
    """A shop whose broker is in the ledger's own Redis database, unless a test asks for another."""
    return new_shop("" if broker_url.startswith("redis://") else broker_url)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    need(find_binaries(), "PostgreSQL")
    pytest.importorskip("psycopg")
    with PostgresServer() as server:
        yield server


#: Each way to a transaction: with SQLite always, with PostgreSQL where the matrix runs.
WAYS = [
    *("django", "session", "connection"),
    *(
        pytest.param(f"{way} postgresql", marks=pytest.mark.matrix)
        for way in ("django", "session", "connection")
    ),
]


@pytest.fixture(params=WAYS)
def orders(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Orders]:
    """The user's own database."""
    way, _, kind = request.param.partition(" ")
    server = request.getfixturevalue("postgres") if kind else None
    if way == "django":
        sqlite = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "orders.db")}
        with alias(ALIAS, **(server.django if server else sqlite)):
            found = DjangoOrders()
            yield found
            found.drop()
        return
    pytest.importorskip("sqlalchemy")
    sql = SqlOrders(
        server.url if server else f"sqlite:///{tmp_path}/orders.db", with_session=way == "session"
    )
    yield sql
    sql.close()
