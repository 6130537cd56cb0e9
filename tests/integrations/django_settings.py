"""As little Django as a result backend needs."""

import os

SECRET_KEY = "for tests"
INSTALLED_APPS = ["django_celery_results"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["DJANGO_DATABASE"]}}
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
