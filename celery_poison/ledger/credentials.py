"""Redis without a password in the URL: who logs in is asked of a ``redis.CredentialProvider``."""

from __future__ import annotations

from importlib import import_module
from typing import Any
from urllib.parse import quote

import redis
from redis.credentials import CredentialProvider

from celery_poison.errors import ConfigurationError
from celery_poison.ledger.tls import divided, joined

#: The name of the option in kombu's URLs, and of redis-py's argument.
PROVIDER = "credential_provider"

#: Name -> a provider that was handed over ready-made, in this process.
_ready_made: dict[str, CredentialProvider] = {}


class _Provider(CredentialProvider):
    """A user's provider; what goes wrong there means that Redis cannot be reached."""

    def __init__(self, name: str, provider: CredentialProvider) -> None:
        self._name, self._provider = name, provider

    def get_credentials(self) -> Any:
        try:
            return self._provider.get_credentials()
        except Exception as error:  # its text may quote a token
            raise redis.ConnectionError(
                f"the {PROVIDER} {self._name} raised {type(error).__name__}"
            ) from None


def with_provider(url: str, provider: object) -> str:
    """Return ``url`` with a provider in it, unless it names one itself.

    Args:
        provider: as Celery takes it: the path of a class, or a provider.
    """
    address, query = divided(url)
    if not provider or PROVIDER in query:
        return url
    if not isinstance(provider, str):
        kind = provider if isinstance(provider, type) else type(provider)
        name = f"{kind.__module__}.{kind.__qualname__}"
        if isinstance(provider, CredentialProvider):
            _ready_made[name] = provider
        provider = name
    return joined(address, {**query, PROVIDER: provider})


def with_login(url: str, user: str | None, password: str | None) -> str:
    """Return ``url`` with user and password, as far as it has none itself."""
    scheme, slashes, rest = url.partition("://")
    place, slash, path = rest.partition("/")
    login, _, host = place.rpartition("@")
    own_user, _, own_password = login.partition(":")
    login = own_user or quote(user or "", safe="")
    if own_password or password:
        login += ":" + (own_password or quote(password or "", safe=""))
    return f"{scheme}{slashes}{login}{'@' if login else ''}{host}{slash}{path}"


def without_provider(url: str) -> tuple[str, dict[str, Any]]:
    """Return ``url`` without its provider, and redis-py's argument for that; the URL's user gives way to it.

    Raises:
        ConfigurationError: there is no such class, or it is none of redis-py's providers.
    """
    address, query = divided(url)
    name = query.pop(PROVIDER, None)
    if name is None:
        return url, {}
    scheme, slashes, rest = address.partition("://")
    place, slash, path = rest.partition("/")
    address = f"{scheme}{slashes}{place.rpartition('@')[2]}{slash}{path}"
    return joined(address, query), {PROVIDER: _Provider(name, _ready_made.get(name) or _made(name))}


def _made(name: str) -> CredentialProvider:
    module, _, attribute = name.replace(":", ".").rpartition(".")
    try:
        provider = getattr(import_module(module), attribute)()
    except Exception as error:
        raise ConfigurationError(
            f"{PROVIDER}={name}: it cannot be made ({type(error).__name__}: {error});"
            " name a class of an importable module"
        ) from None
    if not isinstance(provider, CredentialProvider):
        raise ConfigurationError(f"{PROVIDER}={name}: it is no redis.CredentialProvider")
    return provider
