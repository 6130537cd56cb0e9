"""Rules without a store and without Celery: what blocks, where poison goes, what a doubt weighs."""
