"""The Celery app that the tests' workers run, and what the tests see it by."""
