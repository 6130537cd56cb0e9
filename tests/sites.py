"""As much of a worker's site as one part of it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from inspect import signature
from typing import Any, TypeVar

from celery_poison.extension import Extensions
from celery_poison.worker.plans import Plans
from celery_poison.worker.site import Site

T = TypeVar("T")
_OF_A_SITE = [each.name for each in fields(Site)]


def site(**parts: Any) -> Site:
    """Return a site with these parts, and without the others or any extension."""
    given: dict[str, Any] = {
        **dict.fromkeys(_OF_A_SITE),
        "plans": Plans(),
        "extensions": Extensions(),
        **parts,
    }
    return Site(**given)


def on_site(kind: Callable[..., T], **parts: Any) -> T:
    """Make a part of a worker of what it is given and what its site has; None for what is not named."""
    given = dict.fromkeys(signature(kind).parameters)
    theirs = {name: part for name, part in parts.items() if name not in _OF_A_SITE}
    return kind(**(given | {"site": site(**{k: v for k, v in parts.items() if k in _OF_A_SITE})} | theirs))
