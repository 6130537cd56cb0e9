"""TLS options in the ledger's URL, from wherever Celery is told them."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from celery_poison.basics.text import without_secrets
from celery_poison.cli.redis_checks import encryption
from celery_poison.errors import ConfigurationError
from celery_poison.ledger.connection import open_redis
from celery_poison.ledger.tls import with_tls, without_tls
from celery_poison.plugin import plugin_of
from tests.tls.server import TlsRedisServer

HOSTILE = "/my certs/a&b=c;d?e#f%41.pem"


def opened(url: str, **options: Any) -> tuple[type, dict[str, Any]]:
    """Return with what kind of connection, and which TLS arguments, the ledger is spoken to."""
    pool: Any = open_redis(url, options).connection_pool
    return pool.connection_class, {k: v for k, v in pool.connection_kwargs.items() if k.startswith("ssl")}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_ca_certs": HOSTILE}, ("required", HOSTILE)),
        ({"ssl_cert_reqs": "CERT_OPTIONAL", "ssl_ca_certs": "ca"}, ("optional", "ca")),
        ({"ssl_cert_reqs": "none", "ssl_ca_certs": "ca"}, ("none", "ca")),
        ({"ssl_cert_reqs": None, "ssl_ca_certs": "ca"}, ("none", "ca")),
        ({"ssl_cert_reqs": 2, "ssl_ca_certs": "ca"}, ("required", "ca")),
    ],
)
@pytest.mark.parametrize("url", ["redis://:pw@a:1/2", "rediss://:pw@a:1/2", "rediss://:pw@a:1/2;rediss://b"])
def test_what_kombu_is_told_beside_the_url_becomes_a_part_of_it(
    url: str, options: dict[str, Any], expected: tuple[str, str]
) -> None:
    complete = with_tls(url, options)
    kind, found = opened(complete)
    assert kind is redis.SSLConnection
    assert (found["ssl_cert_reqs"], found["ssl_ca_certs"]) == expected
    assert with_tls(complete, options) == complete
    assert "pw" not in without_secrets(complete) and "my" not in without_secrets(complete)


def test_every_kind_of_value_comes_back_as_it_was() -> None:
    given = {
        "ssl_check_hostname": False,
        "ssl_min_version": ssl.TLSVersion.TLSv1_3,
        "ssl_keyfile": "key",
        "ssl_certfile": "cert",
        "ssl_password": "p&q",
    }
    unset = {"ssl_ca_certs": None, "ssl_ca_path": None}
    assert opened(with_tls("redis://a", given | unset))[1] == given
    assert opened(with_tls("redis://a", {"ssl_ca_certs": Path(HOSTILE)}))[1] == {"ssl_ca_certs": HOSTILE}


def test_the_url_has_the_last_word() -> None:
    url = with_tls("rediss://a?ssl_cert_reqs=required&db=3", {"ssl_cert_reqs": "none", "ssl_ca_certs": "ca"})
    assert without_tls(url) == ("rediss://a?db=3", {"ssl_cert_reqs": "required", "ssl_ca_certs": "ca"})


@pytest.mark.parametrize("options", [None, False, True, {}, {"keyfile": "of RabbitMQ"}])
def test_what_asks_for_nothing_that_redis_knows_changes_nothing(options: object) -> None:
    assert with_tls("redis://a:1/2;redis://b", options) == "redis://a:1/2;redis://b"


def test_a_unix_socket_needs_no_tls() -> None:
    assert (
        with_tls("redis+socket:///run/redis.sock", {"ssl_cert_reqs": "none"})
        == "redis+socket:///run/redis.sock"
    )


@pytest.mark.parametrize(
    "option",
    [
        {"ssl_ocsp_context": object()},
        {"ssl_cert_reqs": 7},
        {"ssl_include_verify_flags": [ssl.VerifyFlags.VERIFY_X509_STRICT]},
    ],
)
def test_what_cannot_be_written_down_is_refused_with_the_cure(option: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"ssl_\w+=.*set poison_redis_url"):
        with_tls("rediss://a", option)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("ssl_cert_reqs=maybe", "ssl_cert_reqs=maybe: use "),
        ("ssl_min_version=SSLv9", "ssl_min_version=SSLv9: use "),
        ("ssl_ca_cert=ca", "ssl_ca_cert: redis-py knows no such option"),
    ],
)
def test_what_means_nothing_is_refused_with_its_name(wrong: str, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        open_redis(f"rediss://a?{wrong}")


def test_a_master_that_a_sentinel_names_is_spoken_to_in_tls_where_the_options_say_so() -> None:
    url = with_tls("sentinel://:pw@a:1/4;sentinel://b:2/5", {"ssl_cert_reqs": "none", "ssl_ca_certs": "ca"})
    kind, found = opened(url, master_name="m")
    assert issubclass(kind, redis.SSLConnection)
    assert found == {"ssl_cert_reqs": "none", "ssl_ca_certs": "ca"}
    assert not issubclass(opened("sentinel://a:1/4", master_name="m")[0], redis.SSLConnection)


@pytest.mark.parametrize(
    ("url", "level"),
    [
        ("redis://a", "ok"),
        ("rediss://a", "ok"),
        ("rediss://a?ssl_cert_reqs=optional", "warn"),
        ("rediss://a?ssl_cert_reqs=none", "warn"),
    ],
)
def test_the_doctor_tells_of_a_server_that_anybody_may_pretend_to_be(url: str, level: str) -> None:
    found = encryption(open_redis(url))
    assert (found.level, bool(found.cure)) == (level, level == "warn")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"broker_url": "rediss://b", "broker_use_ssl": {"ssl_ca_certs": "x"}}, {"ssl_ca_certs": "x"}),
        ({"broker_url": "redis://b", "broker_use_ssl": {"ssl_ca_certs": "x"}}, {"ssl_ca_certs": "x"}),
        ({"broker_url": "rediss://b?ssl_cert_reqs=CERT_REQUIRED"}, {"ssl_cert_reqs": "required"}),
        # kombu takes it so, and says so in the log: a stricter ledger would be away while the broker is not.
        ({"broker_url": "rediss://b"}, {"ssl_cert_reqs": "none"}),
        (
            {
                "broker_url": "amqp://",
                "result_backend": "rediss://b",
                "redis_backend_use_ssl": {"ssl_cert_reqs": ssl.CERT_REQUIRED},
                "broker_use_ssl": {"keyfile": "of RabbitMQ"},
            },
            {"ssl_cert_reqs": "required"},
        ),
        ({"broker_url": "redis://b", "broker_use_ssl": {}, "poison_redis_url": "rediss://b"}, {}),
    ],
)
def test_the_ledger_is_spoken_to_as_celerys_redis_is(
    settings: dict[str, Any], expected: dict[str, Any]
) -> None:
    app = Celery("tls", set_as_current=False)
    app.conf.update(settings)
    assert opened(plugin_of(app).ledger_url) == (redis.SSLConnection, expected)


def test_a_server_that_asks_for_a_certificate_is_shown_the_one_that_celery_was_told(
    tls_server: TlsRedisServer,
) -> None:
    authority = tls_server.authority
    options = {
        "ssl_cert_reqs": ssl.CERT_REQUIRED,
        "ssl_ca_certs": str(authority.ca),
        "ssl_certfile": str(authority.certificate),
        "ssl_keyfile": str(authority.key),
    }
    app = Celery("tls", set_as_current=False)
    with TlsRedisServer(authority) as strict:
        strict.client().config_set("tls-auth-clients", "yes")
        app.conf.update(broker_url=strict.bare_url(), broker_use_ssl=options)
        with plugin_of(app).open_ledger().client as known, open_redis(strict.url()) as unknown:
            assert known.ping()
            with pytest.raises(redis.ConnectionError):
                unknown.ping()
