"""What the commands of ``celery poison pipeline`` do, one module each."""
