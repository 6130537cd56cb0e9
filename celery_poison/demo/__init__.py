"""``celery-poison demo``: a fleet of one's own, poison among its work, and what becomes of both.

In reading order: ``command`` reads the options; ``stage`` starts Redis and the workers, whose app is ``app``,
and sends the load; ``screen`` looks on and shows it; ``story`` decides twice, holds the promises against what
happened, and tells.
"""
