"""`celery-poison demo`: a fleet of one's own, poison among its work, and what becomes of both.

In reading order: ``command`` reads the options; ``stage`` starts Redis and the workers, whose app is
``app`` (``factory``, ``tasks``, ``poisons``, ``tally``); ``load`` sends; ``story`` and ``plain`` are the
two plays; ``watch`` looks on, ``screen`` shows it (``drawing``, ``ink``); ``promises`` judges, ``report``
tells.
"""
