"""Flower's download of a failing test of a message in quarantine (NEW-21)."""

from __future__ import annotations

from celery import Celery
from tornado.web import HTTPError, authenticated, url

from celery_poison.desk import Quarantine
from celery_poison.extensions.repro.writing import Repro, call_of, repro_of
from celery_poison.flower.extension_parts import FlowerPart
from celery_poison.flower.pages import Page
from celery_poison.plugin import plugin_of


class ReproFile(Page):
    @authenticated
    async def get(self, mid: str) -> None:
        if self.bodies_closed:
            raise HTTPError(403, "Bodies are shown only where Flower asks who you are")
        made = await self.ledger.ask(lambda: _repro(self.capp, self.ledger.quarantine, mid))
        self.send_body(made.text.encode("ascii"), made.name)


def _repro(app: Celery, quarantine: Quarantine, mid: str) -> Repro:
    record, stored = quarantine.get(mid), quarantine.message(mid)
    call = call_of(app, plugin_of(app).settings.redact, record.task, stored)
    return repro_of(app, record, stored, call)


_ABOUT = "A pytest file in which the task dies of this message again."
PART = FlowerPart(
    [url(r"/poison/repro/(.+)", ReproFile, name="poison-repro")],
    downloads={"poison-repro": ("Failing test", _ABOUT)},
)
