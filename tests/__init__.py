"""The tests of celery_poison."""

#: Seconds that a test waits for what must come before it fails: a machine may have much else to do.
PATIENCE = 120.0
