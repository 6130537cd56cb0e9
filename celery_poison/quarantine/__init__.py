"""The quarantine: what was convicted, kept byte for byte until a person decides."""

from celery_poison.quarantine.care import Care
from celery_poison.quarantine.facade import Quarantine

__all__ = ["Quarantine", "Care"]
