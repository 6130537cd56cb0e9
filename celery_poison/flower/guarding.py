"""Who may come in, and who may act: the same in every version and every mode of Flower."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

#: A program that cannot hold a cookie says by this header that no browser was talked into its request: pages
#: of other sites cannot set it, and no version of Flower allows it to them.
CLIENT_HEADER = "X-Poison-Client"


def foreign(headers: Mapping[str, str], host: str) -> str:
    """Return why a request that changes something comes from another site's page; empty if it does not."""
    site = headers.get("Sec-Fetch-Site")
    if site is not None and site != "same-origin":
        return "Cross-site request forbidden"
    origin = headers.get("Origin")
    if origin is not None and urlsplit(origin).netloc != host:
        return "Cross-origin request forbidden"
    return ""


def closed(*, read_only: bool, authenticated: bool, unauthenticated_api: bool) -> str:
    """Return why nobody may act here; empty if those who came in may.

    Args:
        authenticated: whether this Flower asks who somebody is.
        unauthenticated_api: Flower's ``FLOWER_UNAUTHENTICATED_API``.
    """
    if read_only:
        return "Read only mode is enabled"
    if not authenticated and not unauthenticated_api:
        return (
            "This Flower does not ask who you are, so nobody may act here: start it with --basic_auth or"
            " --auth, or set FLOWER_UNAUTHENTICATED_API=true"
        )
    return ""


def actor(user: object, basic_name: str, address: str) -> str:
    """Return whom the journal names as the one who decided."""
    if isinstance(user, str) and user:
        return f"{user} (flower)"
    if basic_name:
        return f"{basic_name} (flower)"
    return f"somebody at {address} (flower)"
