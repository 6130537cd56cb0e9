"""How to speak TLS, as a part of the ledger's URL: a process with the URL needs nothing else to connect.

Celery keeps that apart, in ``broker_use_ssl`` and ``redis_backend_use_ssl``; redis-py reads it from the URL.
"""

from __future__ import annotations

import inspect
import os
import re
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

import redis
import redis.sentinel

from celery_poison.errors import ConfigurationError

_PREFIX = "ssl_"
_KNOWN = frozenset(inspect.signature(redis.SSLConnection).parameters)
_NO = ("false", "0", "no", "")


def with_tls(url: str, options: object) -> str:
    """Return ``url`` with these options in it; what it says itself is left as it is.

    Args:
        url: of the forms that :func:`celery_poison.ledger.connection.open_redis` takes; of several
            servers the first gets the options.
        options: the setting of Celery or kombu: a mapping of redis-py's ``ssl_*`` arguments. They ignore
            anything else, and so does this. A Unix socket needs none.

    Raises:
        ConfigurationError: one of them cannot be written down.
    """
    if not isinstance(options, Mapping) or url.startswith(("unix:", "redis+socket:")):
        return url
    first, *others = url.split(";")
    address, query = divided(first)
    given = {
        name: _written(name, value)
        for name, value in options.items()
        # Of the others None is the default; it is this one's word for no verification.
        if name.startswith(_PREFIX) and (value is not None or name == "ssl_cert_reqs")
    }
    return ";".join([joined(address, given | query), *others])


def without_tls(url: str) -> tuple[str, dict[str, Any]]:
    """Return ``url`` (a single one) without its TLS options, and these as redis-py's arguments.

    As in kombu, a URL that names such an option speaks TLS, also to ``redis://``.

    Raises:
        ConfigurationError: one of them means nothing, or its value does.
    """
    address, query = divided(url)
    options = {name: _read(name, value) for name, value in query.items() if name.startswith(_PREFIX)}
    rest = {name: value for name, value in query.items() if name not in options}
    if options:
        address = re.sub("^redis:", "rediss:", address)
    return joined(address, rest), options


def divided(url: str) -> tuple[str, dict[str, str]]:
    """Return the address in a URL, and the options in its query."""
    address, _, query = url.partition("?")
    return address, dict(parse_qsl(query, keep_blank_values=True))


def joined(address: str, query: Mapping[str, str]) -> str:
    """Undo :func:`divided`."""
    return f"{address}?{urlencode(query, quote_via=quote)}" if query else address


def _written(name: str, value: Any) -> str:
    if name == "ssl_cert_reqs" and value in (None, *ssl.VerifyMode):
        return ssl.VerifyMode(value or 0).name.removeprefix("CERT_").lower()
    if isinstance(value, ssl.TLSVersion):
        return value.name
    if isinstance(value, (str, bool, os.PathLike)):
        return str(value)
    raise ConfigurationError(
        f"{name}={value!r} cannot be a part of the ledger's URL: use text, or set poison_redis_url"
    )


def _read(name: str, value: str) -> Any:
    match name:
        case "ssl_cert_reqs":
            verification = re.fullmatch(r"(?:ssl\.)?(?:CERT_)?(none|optional|required)", value, re.IGNORECASE)
            if verification is None:
                raise ConfigurationError(f"ssl_cert_reqs={value}: use none, optional or required")
            return verification[1].lower()
        case "ssl_min_version":
            versions = ssl.TLSVersion.__members__
            if value not in versions:
                raise ConfigurationError(f"ssl_min_version={value}: use one of {', '.join(versions)}")
            return ssl.TLSVersion[value]
        case "ssl_check_hostname" | "ssl_validate_ocsp" | "ssl_validate_ocsp_stapled":
            return value.lower() not in _NO
    if name not in _KNOWN:
        raise ConfigurationError(f"{name}: redis-py knows no such option")
    return value
