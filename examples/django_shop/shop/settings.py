"""Only what a project without pages needs."""

import os
from pathlib import Path

REDIS = "redis://localhost:6379/0"

SECRET_KEY = "for a shop that nobody can reach"
INSTALLED_APPS = ["celery_poison.contrib.django", "shop"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
TIME_ZONE = "UTC"  # else Django has the worker log the time of Chicago

if os.environ.get("SHOP_DATABASE") == "postgresql":  # the rest is in PGHOST, PGPORT and PGUSER
    DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "postgres"}}
else:
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": os.environ.get("SHOP_DATABASE", Path(__file__).parents[1] / "shop.sqlite3"),
            # SQLite has one writer at a time: begin as one, and wait for the others.
            "OPTIONS": {
                "transaction_mode": "IMMEDIATE",
                "timeout": 20,
                "init_command": "PRAGMA journal_mode=WAL;",
            },
        }
    }

CELERY_BROKER_URL = os.environ.get("SHOP_BROKER", REDIS)
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_TASK_IGNORE_RESULT = True
CELERY_POISON_REDIS_URL = os.environ.get("SHOP_LEDGER", REDIS)
CELERY_POISON_OUTBOX = True
CELERY_POISON_OUTBOX_DATABASE = "django"
