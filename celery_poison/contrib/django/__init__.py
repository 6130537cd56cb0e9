"""A Django app with one table: what is published in a transaction waits there (docs/outbox.md).

INSTALLED_APPS = [..., "celery_poison.contrib.django"]
"""
