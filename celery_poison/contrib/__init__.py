"""What belongs into another framework's own lists; nothing here is imported by celery_poison itself."""
