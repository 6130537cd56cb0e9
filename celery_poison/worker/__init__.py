"""What happens inside a Celery worker, in the order in which a message meets it.

``road`` lets a healthy message in at sight, by the plan of its task (``plans``), and sends it to the pool.
Of a delivery that needs care ``delivery`` notes what is to be known, ``admission`` judges it, and
``dispatcher`` takes it to the pool, or to a cell. ``child`` runs it there, and ``recorder`` puts its start
and end on record. ``request`` hears how it ended, and ``outcome`` carries out what becomes of a message whose
task did not end well; a thread of ``threads`` writes that down. ``heartbeat`` shows that it lives; ``rejoin``
is for one that was taken for dead, ``resync`` for a Redis that was restarted or replaced.

``bootsteps`` is what Celery loads; ``worker`` puts a worker together, and ``life`` has the order in which its
parts start and end.
"""
