"""Publishing in a transaction of SQLAlchemy; :mod:`celery_poison.extensions.outbox.sessions` does it."""

from celery_poison.extensions.outbox.sessions import outbox_table, publishing_in

__all__ = ["outbox_table", "publishing_in"]
