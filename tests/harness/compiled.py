"""Bytecode of all that a run imports, made once: without it each process of xdist compiles the same.

They begin together, and in a fresh tree each rewrote all tests, which takes longer than to import them.
"""

from __future__ import annotations

import compileall
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from _pytest.assertion import rewrite


def compile_share(config: pytest.Config) -> None:
    """In a process of xdist: compile its share of the files, while the others compile theirs."""
    work = getattr(config, "workerinput", None)
    if work is None or sys.dont_write_bytecode:
        return
    root, number, count = config.rootpath, int(work["workerid"].removeprefix("gw")), int(work["workercount"])
    files = [path for folder in ("tests", "celery_poison") for path in sorted((root / folder).rglob("*.py"))]
    for path in files[number::count]:
        if path.name.startswith("test_"):
            with suppress(Exception):  # pytest's own affair: it does the same later
                _rewrite(path, config)
        else:
            compileall.compile_file(path, quiet=2)


def _rewrite(path: Path, config: pytest.Config) -> None:
    compiled = rewrite.get_cache_dir(path) / f"{path.stem}{rewrite.PYC_TAIL}"
    if rewrite._read_pyc(path, compiled) is None:
        compiled.parent.mkdir(exist_ok=True)
        stat, code = rewrite._rewrite_test(path, config)
        rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, stat, compiled)
