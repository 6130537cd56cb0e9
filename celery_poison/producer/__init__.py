"""The sending side: what is published is stored in the caller's call, and sent by a relay (TP1-1 to TP1-7).

A message passes ``capture`` (in the caller: Celery's own publish, up to the broker, and what is stored of
it), ``outbox`` (stores it), and, in a worker or in ``celery poison outbox run``: ``relay`` (takes
what is due), ``handover`` (brings it to the broker), ``causes`` (what is done about each way to fail).

What is published in a transaction of the user's database waits there (``database``) until it is committed,
and is moved into the outbox then.
"""
