"""Adds pages and tab to the Flower of this process, before it starts."""

from __future__ import annotations

from typing import Any

from celery.utils.log import get_logger

logger = get_logger(__name__)


def install() -> bool:
    """Add the quarantine's pages to Flower; safe to call again.

    To be called before Flower builds its application: from ``flowerconfig.py``, or by
    ``celery poison flower``. If this Flower is built differently from those we know, it is left as it
    is, with a warning in the log.

    Returns:
        Whether the pages are there now.

    Raises:
        ModuleNotFoundError: Flower is not installed: ``pip install 'celery-poison[flower]'``.
    """
    from flower import urls

    from celery_poison.flower import metrics, routes, templates

    try:
        if not any(_is_ours(handler) for handler in urls.handlers):
            loader = templates.PoisonLoader(urls.settings["template_path"])
            # In front, since Flower's last route answers everything that is left with 404.
            urls.handlers[:0] = [*routes.handlers(), (r"/metrics", metrics.Metrics)]
            urls.settings["template_loader"] = loader
    except Exception as error:
        logger.warning(
            "celery_poison: this Flower is not built as expected (%s: %s), so its pages are missing;"
            " `celery poison` on the command line does all of it",
            type(error).__name__,
            error,
        )
        return False
    return True


def _is_ours(handler: Any) -> bool:
    return getattr(handler, "name", None) == "poison"
