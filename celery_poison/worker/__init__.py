"""What happens inside a Celery worker, in the order in which a message meets it.

``arrival`` lets it in, keeps candidates alone and takes it to the pool, or to ``trial``: a process of its
own. ``child`` runs it there, and ``recorder`` puts its start and end on record. ``request`` hears how it
ended, and ``outcome`` carries out what becomes of a message whose task did not end well. ``clerk`` writes
that down.

``steps`` is what Celery loads; ``runtime`` puts a worker together. ``presence`` is its life in the ledger:
its names and heartbeat, and what it does when it was taken for dead, when the broker connection was lost, or
when the ledger's Redis was restarted or replaced.
"""
