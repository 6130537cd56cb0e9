"""Marks in a task's own transaction; :mod:`celery_poison.extensions.once.transaction_marks` makes them."""

from celery_poison.extensions.once.transaction_marks import mark_django, mark_sqlalchemy, sqlalchemy_marks

__all__ = ["mark_django", "mark_sqlalchemy", "sqlalchemy_marks"]
