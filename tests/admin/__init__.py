"""Django's admin."""
