"""The command line: ``celery -A proj poison ...``, and ``celery-poison`` where no app is needed.

``celery_command`` names the verbs, each verb has a file of its own. They read and act through
:class:`celery_poison.Quarantine`; nothing is decided here.
"""
