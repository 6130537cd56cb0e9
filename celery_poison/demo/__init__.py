"""`celery-poison demo`: a fleet of one's own, poison among its work, and what becomes of both.

In reading order: ``command`` reads the options; ``stage`` starts Redis and the workers, whose app is ``app``
(``poisons``), and sends the load; ``watch`` looks on, ``screen`` shows it; ``story`` decides twice and holds
the promises against what happened; ``report`` tells.
"""
