"""For scripts that are tests, too: the app of `celery.contrib.pytest` has what the script says."""

from __future__ import annotations

import os

import pytest

from examples.issues.stage import furnish


@pytest.fixture(scope="session")
def celery_config():
    return {"broker_url": os.environ["ISSUES_BROKER"], "result_backend": os.environ["ISSUES_BACKEND"]}


@pytest.fixture
def celery_app(celery_app):
    return furnish(celery_app, os.environ)
