"""celery #1709: Tasks are not allowed to start subprocesses

Redis, prefork. A task starts a process, and waits for it, in each of these ways.
"""

import multiprocessing
import os
import subprocess

import billiard

from examples.issues.stage import mark

STATE = "open"
PLAIN = "`os.fork`: started, `subprocess`: started, `multiprocessing`: AssertionError, `billiard`: started"
GUARDED = "`os.fork`: started, `subprocess`: started, `multiprocessing`: AssertionError, `billiard`: started"
WAYS = {
    "os.fork": lambda: (os.fork() and os.wait()) or os._exit(0),
    "subprocess": lambda: subprocess.run(["true"], check=True),
    "multiprocessing": lambda: multiprocessing.Process(target=os.getpid).start(),
    "billiard": lambda: billiard.Process(target=os.getpid).start(),
}


def tasks(task):
    @task(acks_late=True)
    def start(way):
        WAYS[way]()
        mark(way)


def play(stage):
    results = {way: stage.send("start", way) for way in WAYS}
    with stage.worker():
        stage.wait(lambda: all(result.ready() for result in results.values()))
    ends = {way: "started" if stage.count(way) else type(results[way].result).__name__ for way in WAYS}
    return ", ".join(f"`{way}`: {end}" for way, end in ends.items())
