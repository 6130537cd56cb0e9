"""The names that users import: the quarantine, and the care of a release."""

from celery_poison.desk import Care, Quarantine

__all__ = ["Quarantine", "Care"]
