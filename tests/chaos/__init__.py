"""``python -m tests.chaos``: a fleet under load, a seeded plan of faults, and a judge that trusts nobody.

Read on in the order of a run: ``command``, ``plan`` (which fault strikes when), ``stage`` (servers, proxies,
workers, load), ``faults`` (how each is done), ``judge`` with ``excuses`` (what may be lost, run twice,
blamed), ``remains`` (what is still there when all is quiet), ``report`` (and the story of one message). The
truth is the tasks' own log (``runs``), never the ledger.
"""
