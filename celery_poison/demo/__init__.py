"""``celery-poison demo``: a fleet of one's own, poison among its work, and what becomes of both.

In reading order: ``stage`` starts Redis and the workers, whose app is ``app``, and sends the load; ``screen``
shows it; ``story``, which is the command, decides twice, holds the promises against what happened, and tells.
"""
