"""Flower's section on the cost of deaths (NEW-28)."""

from __future__ import annotations

from pathlib import Path

from celery_poison.flower.extension_parts import FlowerPart

PART = FlowerPart(sections=[str(Path(__file__).with_name("section.html"))])
