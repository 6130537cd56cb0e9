"""Marks in a task's own transaction; :mod:`celery_poison.extensions.once.marks` makes them."""

from celery_poison.extensions.once.marks import mark_django, mark_sqlalchemy, sqlalchemy_marks

__all__ = ["mark_django", "mark_sqlalchemy", "sqlalchemy_marks"]
