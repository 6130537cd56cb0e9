"""What happens inside a Celery worker, in the order in which a message meets it.

``door`` lets it in, ``gate`` keeps candidates alone, ``sending`` takes it to the pool, ``attempt`` runs it
in the pool process, where ``recorder`` writes its start and end, ``request`` hears how it ended, ``fate``
decides what becomes of a message whose task did not end well, ``endings`` takes the start of any other off
the ledger, and ``clerk`` writes that down.

``runtime`` puts a worker together. ``incarnation`` has its names, ``pulse`` and ``about`` are its heartbeat,
``health`` knows how its ledger is, ``refreshing`` brings what others changed there. When something breaks:
``rebirth`` (it was taken for dead), ``leftovers`` (the broker connection was lost), ``following`` and
``memory`` (the ledger's Redis was restarted or replaced).
"""
