"""One poison and a few healthy tasks, on pytest-celery's containers."""
