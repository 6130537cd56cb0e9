"""The quarantine inside Flower: pages, a JSON API and a tab, added without a fork.

Either ``celery -A proj poison flower`` with all of Flower's options, or two lines in ``flowerconfig.py``::

    from celery_poison.flower import install
    install()

In reading order: here are added routes, tab and metrics. ``pages`` answers people, ``api`` programs, both
after ``access`` has let a request in; ``act_pages`` and ``changing`` change things for both. Their questions
are answered by ``async_ledger``, away from Flower's event loop, out of the read model and
:class:`~celery_poison.desk.Quarantine`. ``choosing`` says what can be done, and with which messages;
``extension_parts`` finds what extensions bring.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from celery.utils.log import get_logger
from flower import urls
from flower.views import monitor
from tornado.template import Loader, Template
from tornado.web import StaticFileHandler, url

from celery_poison.flower import act_pages, api, pages
from celery_poison.flower.extension_parts import all_parts
from celery_poison.metrics import register

__all__ = ["install"]

logger = get_logger("celery_poison")

STATIC = Path(__file__).parent / "static"
OWN = Path(__file__).parent / "templates"

_TAB = re.compile(r"[ \t]*<li\b(?:(?!</li>).)*reverse_url\('broker'\)(?:(?!</li>).)*</li>\n?", re.DOTALL)
_CONTAINER = "{% block container %}"
_TASK_LINK = """
<div class="container-fluid pt-3 poison-task-link"><a href="{{ reverse_url('poison-task', task.uuid) }}">What
  celery_poison knows about this task</a></div>
"""


def install() -> bool:
    """Add the quarantine's pages to Flower; safe to call again.

    To be called before Flower builds its application: from ``flowerconfig.py``, or by
    ``celery poison flower``. If this Flower is built differently from those we know, it is left as it
    is, with a warning in the log.

    Returns:
        Whether the pages are there now.
    """
    try:
        if not any(getattr(handler, "name", None) == "poison" for handler in urls.handlers):
            loader = PoisonLoader(urls.settings["template_path"])
            # In front, since Flower's last route answers everything that is left with 404.
            urls.handlers[:0] = [*handlers(), (r"/metrics", Metrics)]
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


def handlers() -> list[Any]:
    """Return the routes. Only ``url`` objects keep their arguments under Flower's ``--url_prefix``."""
    held = [
        url(r"/poison/held/resume", pages.Decide, {"act": act_pages.let_go}, name="poison-resume"),
        url(r"/poison/held/begin", pages.Decide, {"act": act_pages.hold_back}, name="poison-hold"),
    ]
    return [
        url(r"/poison", pages.ListPage, name="poison"),
        url(r"/poison/message/(.+)", pages.MessagePage, name="poison-message"),
        url(r"/poison/task/(.+)", pages.TaskRedirect, name="poison-task"),
        url(r"/poison/body/(.+)", pages.Body, name="poison-body"),
        url(r"/poison/incidents", pages.IncidentsPage, name="poison-incidents"),
        url(r"/poison/incident/(.+)", pages.IncidentPage, name="poison-incident"),
        url(r"/poison/preview/(\w+)", pages.PreviewPage, name="poison-preview"),
        url(r"/poison/act/(\w+)", pages.Act, name="poison-act"),
        url(r"/poison/job/(\w+)", pages.JobPage, name="poison-job"),
        url(r"/poison/edit/(.+)", pages.EditPage, name="poison-edit"),
        url(r"/poison/block", pages.BlockPage, name="poison-block"),
        url(r"/poison/block/end", pages.Unblock, name="poison-unblock"),
        url(r"/poison/gate/lift", pages.Decide, {"act": act_pages.lift_gate}, name="poison-gate"),
        url(r"/poison/static/(.*)", StaticFileHandler, {"path": str(STATIC)}, name="poison-static"),
        *(held if act_pages.hold_kinds() else ()),
        *(route for part in all_parts() for route in part.routes),
        *(url(f"/api/poison/{address}", api.Api, answers) for address, answers in api.routes().items()),
    ]


class Metrics(monitor.Metrics):
    """Flower's own ``/metrics``, with the quarantine's beside it: open to every visitor, as Flower leaves it.

    Begins to look at the ledger when it is asked for the first time: only then the app is known.
    """

    async def get(self) -> None:
        settings = self.application.settings
        if not settings.get("_poison_metrics"):
            settings["_poison_metrics"] = True
            try:
                register(self.application.capp)
            except Exception as error:
                logger.warning("celery_poison: Flower's metrics lack the quarantine's: %s", error)
        await super().get()


class PoisonLoader(Loader):
    """Loads Flower's templates from its directory, ours from our own.

    Where Flower's look different from what we know, they are left alone, and ours stand on a plain base.
    """

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
    place = _TAB.search(navbar)
    tab = place and place[0].replace("('broker')", "('poison')").replace("'broker'", "'poison'")
    if not place or not tab or tab.count(">Broker<") != 1:
        logger.warning("celery_poison: Flower's navigation bar has changed: see /poison, without a tab")
        return navbar
    tab = tab.replace(">Broker<", ">Quarantine<")
    return navbar[: place.end()] + tab + navbar[place.end() :]
