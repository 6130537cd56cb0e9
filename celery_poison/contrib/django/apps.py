"""The app's name and label."""

from django.apps import AppConfig


class OutboxConfig(AppConfig):
    name = "celery_poison.contrib.django"
    label = "celery_poison"
    verbose_name = "celery_poison"
    default_auto_field = "django.db.models.BigAutoField"
