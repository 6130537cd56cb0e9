"""Metrics of a fleet without workers, scraped as Prometheus does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from celery_poison.metrics import register
from celery_poison.metrics.exporter import Exporter
from celery_poison.testing import wait_until
from tests.apps.harness import Fleet

Samples = dict[tuple[str, tuple[str, ...]], float]


def scraped(registry: CollectorRegistry) -> Samples:
    """Return the number of every (name without prefix, values of the labels in the order of their names)."""
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {
        (sample.name.removeprefix("celery_poison_"), tuple(v for _, v in sorted(sample.labels.items()))): (
            sample.value
        )
        for family in families
        for sample in family.samples
    }


class Scraper:
    """Exports the metrics of one app ten times a second, into a registry of its own."""

    def __init__(self, fleet: Fleet) -> None:
        self.registry = CollectorRegistry()
        self.exporter: Exporter = register(fleet.app, interval=0.1, registry=self.registry)

    def now(self) -> Samples:
        return scraped(self.registry)

    def await_that(self, *key: str, is_: float) -> Samples:
        """Scrape until the metric with these labels has this value."""
        name, *labels = key
        wait_until(lambda: self.now().get((name, tuple(labels))) == is_, what=lambda: str(self.now()))
        return self.now()


@pytest.fixture
def scraper(fleet: Fleet) -> Iterator[Scraper]:
    scraper = Scraper(fleet)
    yield scraper
    scraper.exporter.close()
