"""Histories whose truth is known: a lake of Parquet files, as the pipeline would have ingested them.

    python -m examples.histories /tmp/lake --attempts 5000000 --seed 7

A small shop's month: two dozen tasks on eight hosts, a deploy every third day. In between, what kills
workers is planted (:mod:`examples.histories.troubles`), and with it those who only stood by. The same seed
gives the same history. ``_truth.json`` in it says who is guilty.

The healthy runs are drawn by whole columns and know nothing of the deaths: a worker's name goes on after its
death as before, until the next deploy.
"""

from examples.histories.world import World
from examples.histories.write import write, write_lake

__all__ = ["World", "write", "write_lake"]
