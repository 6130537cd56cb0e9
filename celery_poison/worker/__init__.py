"""What happens inside a Celery worker, in the order in which a message meets it.

``door`` lets it in, ``gate`` keeps candidates alone, ``request``
sends it to the pool, ``attempt`` records its start and end in the pool process, ``request`` again hears
how it ended and ``clerk`` writes that down. ``pulse`` is the heartbeat. ``runtime`` holds them together.
"""
