"""Notices that a worker is dead, puts back what it had, and makes sure that only one monitor does."""
