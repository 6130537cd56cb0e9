"""`pipeline all` of this tree and of another one, in turn, each as a command of its own: see pipeline.py."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_MAIN = "from celery_poison.cli.standalone import main; main()"
_SUBREAPER = 36


def measure(lake: Path, against: Path, pairs: int, words: list[str]) -> Iterator[dict[str, float | bool]]:
    """Yield of each pair seconds on the clock and of processors, and whether the figures are the same.

    Args:
        words: further options of the command.
    """
    # What outlives its command, as Java may by a moment, is waited for here, and counts.
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    for number in range(pairs):
        trees = [ROOT, against]
        ran = {tree: _run(tree, lake, words) for tree in (trees if number % 2 else trees[::-1])}
        (new, new_cpu, new_figures), (old, old_cpu, old_figures) = ran[ROOT], ran[against]
        yield {
            "seconds": new,
            "against": old,
            "clock": new / old,
            "cpu": new_cpu,
            "cpu_against": old_cpu,
            "processors": new_cpu / old_cpu,
            "same": new_figures == old_figures,
        }


def _run(tree: Path, lake: Path, words: list[str]) -> tuple[float, float, str]:
    with tempfile.TemporaryDirectory() as place:
        shutil.copytree(lake, f"{place}/lake", copy_function=os.link)
        command = [sys.executable, "-c", _MAIN, "pipeline", "all", "--lake", f"{place}/lake", *words]
        command += ["--redis", "redis://127.0.0.1:1", "--out", f"{place}/report.html"]
        before, began = os.times(), time.perf_counter()
        done = subprocess.run(
            command, env={**os.environ, "PYTHONPATH": str(tree)}, cwd=place, capture_output=True, text=True
        )
        seconds = time.perf_counter() - began
        if done.returncode:
            raise SystemExit(f"{tree}: {done.stderr}")
        _wait_for_all()
        after = os.times()
        cpu = after.children_user + after.children_system - before.children_user - before.children_system
        return seconds, cpu, Path(place, "report.json").read_text()


def _wait_for_all() -> None:
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return


def show(pairs: Iterator[dict[str, float | bool]], as_json: bool) -> float:
    """Print each pair, and the medians; return that of the clock."""
    done = []
    for pair in pairs:
        done.append(pair)
        load = os.getloadavg()[0]
        print(
            f"{pair['seconds']:.1f} s, against {pair['against']:.1f} s: {pair['clock']:.2f} of the clock;"
            f" {pair['cpu']:.1f} s of processors, against {pair['cpu_against']:.1f} s; load {load:.1f};"
            f" {'the same figures' if pair['same'] else 'OTHER FIGURES'}",
            file=sys.stderr if as_json else None,
            flush=True,
        )
    clock, cpu = (statistics.median(pair[name] for pair in done) for name in ("clock", "processors"))
    print(json.dumps(done) if as_json else f"median {clock:.2f} of the clock, {cpu:.2f} of processors")
    return clock
