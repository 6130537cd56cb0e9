"""What people see of the ledger, and what they decide. Users import it as ``celery_poison.quarantine``."""

from celery_poison.desk.care import Care
from celery_poison.desk.facade import Quarantine

__all__ = ["Quarantine", "Care"]
