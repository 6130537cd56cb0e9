"""Flower's own templates with a tab and a link of ours in them, and our own beside them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from celery.utils.log import get_logger
from tornado.template import Loader, Template

logger = get_logger(__name__)

OWN = Path(__file__).parent / "templates"

_TAB = re.compile(r"[ \t]*<li\b(?:(?!</li>).)*reverse_url\('broker'\)(?:(?!</li>).)*</li>\n?", re.DOTALL)
_CONTAINER = "{% block container %}"
_TASK_LINK = """
<div class="container-fluid poison-task-link"><a href="{{ reverse_url('poison-task', task.uuid) }}">What
  celery_poison knows about this task</a></div>
"""


class PoisonLoader(Loader):
    """Loads Flower's templates from its directory, ours from our own.

    Where Flower's look different from what we know, they are left alone, and ours stand on a plain base.
    """

    def __init__(self, flowers: str, **options: Any) -> None:
        super().__init__(flowers, **options)

    def resolve_path(self, name: str, parent_path: str | None = None) -> str:
        return name

    def _create_template(self, name: str) -> Template:
        own = OWN / name
        source = own.read_text() if own.is_file() else self._flowers(name)
        return Template(source, name=name, loader=self)

    def _flowers(self, name: str) -> str:
        path = Path(self.root) / name
        if name == "base.html" and (not path.is_file() or _CONTAINER not in path.read_text()):
            logger.warning("celery_poison: Flower has no base template that we know; ours is plain")
            return (OWN / "poison-plain-base.html").read_text()
        source = path.read_text(encoding="utf-8")
        if name == "navbar.html":
            return with_tab(source)
        return source.replace(_CONTAINER, _CONTAINER + _TASK_LINK, 1) if name == "task.html" else source


def with_tab(navbar: str) -> str:
    """Return Flower's navigation bar with a tab after that of the broker, made like it."""
    found = _TAB.search(navbar)
    tab = found and found[0].replace("('broker')", "('poison')").replace("'broker'", "'poison'")
    if not found or not tab or tab.count(">Broker<") != 1:
        logger.warning("celery_poison: Flower's navigation bar has changed: see /poison, without a tab")
        return navbar
    tab = tab.replace(">Broker<", ">Quarantine<")
    return navbar[: found.end()] + tab + navbar[found.end() :]
