"""Addresses of the pages and of the API; names are what links are made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tornado.web import StaticFileHandler, url

from celery_poison.flower import acting, api, proposal, reading

STATIC = Path(__file__).parent / "static"


def handlers() -> list[Any]:
    """Return the routes. Only ``url`` objects keep their arguments under Flower's ``--url_prefix``."""
    return [
        url(r"/poison", reading.ListPage, name="poison"),
        url(r"/poison/message/(.+)", reading.MessagePage, name="poison-message"),
        url(r"/poison/task/(.+)", reading.TaskRedirect, name="poison-task"),
        url(r"/poison/body/(.+)", reading.Body, name="poison-body"),
        url(r"/poison/incidents", reading.IncidentsPage, name="poison-incidents"),
        url(r"/poison/preview/(\w+)", acting.PreviewPage, name="poison-preview"),
        url(r"/poison/act/(\w+)", acting.Act, name="poison-act"),
        url(r"/poison/job/(\w+)", acting.JobPage, name="poison-job"),
        url(r"/poison/gate/lift", acting.LiftGate, name="poison-gate"),
        url(r"/poison/proposal/(apply|dismiss)", proposal.DecideProposal, name="poison-proposal"),
        url(r"/poison/static/(.*)", StaticFileHandler, {"path": str(STATIC)}, name="poison-static"),
        url(r"/api/poison/status", api.Status),
        url(r"/api/poison/groups", api.Groups),
        url(r"/api/poison/messages", api.Messages),
        url(r"/api/poison/message/(.+)", api.Message),
        url(r"/api/poison/body/(.+)", api.Body),
        url(r"/api/poison/incidents", api.Incidents),
        url(r"/api/poison/actions", api.Actions),
        url(r"/api/poison/act/(\w+)", api.Act),
        url(r"/api/poison/job/(\w+)", api.JobState),
        url(r"/api/poison/gate/lift", api.LiftGate),
        url(r"/api/poison/proposal", api.Proposal),
        url(r"/api/poison/proposal/(apply|dismiss)", api.DecideProposal),
    ]
