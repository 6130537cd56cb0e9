"""The quarantine: what was convicted, kept byte for byte until a person decides."""

from celery_poison.quarantine.careful import Care
from celery_poison.quarantine.given_up import Quarantine

__all__ = ["Quarantine", "Care"]
