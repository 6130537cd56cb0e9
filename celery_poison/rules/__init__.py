"""Rules and forms without a store and without Celery: what blocks, where poison goes, what a report holds."""
