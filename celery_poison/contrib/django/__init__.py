"""A Django app: the quarantine in the admin (docs/flower.md), and a table for the outbox (docs/outbox.md).

INSTALLED_APPS = [..., "celery_poison.contrib.django"]
"""
