"""What holds with every Celery that is let in: `tox -e celery55,celery56,celery57` runs it with each."""
