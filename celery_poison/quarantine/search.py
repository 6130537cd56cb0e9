"""The name that users import: what a list of messages is narrowed by."""

from celery_poison.desk.search import Filter

__all__ = ["Filter"]
