"""What a worker writes down each second for a probe, and what it means: without a worker."""

from __future__ import annotations

import subprocess
import sys

import pytest

import celery_poison
from celery_poison.basics.frames import frames_in, is_waiting
from celery_poison.basics.pulse import Pulse, beyond_help

PATIENCE, NOW = 300.0, 10_000.0
DAY = 86_400.0
FROZEN = "it is stopped, or native code holds its interpreter"


def _pulse(at: float = NOW, leaving: bool = False, stack: tuple[str, ...] = (), **since: float) -> Pulse:
    return Pulse("w1@host/b00t", 7, 1, at, PATIENCE, since, stack, leaving)


@pytest.mark.parametrize(
    ("pulse", "why"),
    [
        (_pulse(), ""),
        (_pulse(loop=NOW - 299), ""),
        (
            _pulse(loop=NOW - 301, stack=("f (a.py:3)",)),
            "its event loop has stood for 5 min at f (a.py:3)",
        ),
        (_pulse(children=NOW - 301), "no process of its pool has come up for 5 min"),
        (_pulse(slots=NOW - 301), "every slot has been held for 5 min by a task past its hard time limit"),
        (_pulse(a_later_version=NOW - DAY), ""),
        (_pulse(at=NOW - 299), ""),
        (
            _pulse(at=NOW - 301),
            f"it has not moved for 5 min: {FROZEN}",
        ),
        (_pulse(at=NOW - DAY, leaving=True, loop=NOW - DAY), ""),
    ],
)
def test_NEW_25_only_what_lasts_for_long_is_beyond_help(pulse: Pulse, why: str) -> None:
    assert beyond_help(pulse, NOW) == why


def test_NEW_25_a_pulse_is_read_as_it_was_written_and_nothing_else_is() -> None:
    written = _pulse(stack=("f (a\nb.py:3)", "g (ü.py:4)"), loop=3.5, slots=4.25, leaving=True).encode()
    read = Pulse.decode(written)
    assert read is not None and (read.worker, read.node, read.pid) == ("w1@host/b00t", "w1@host", 7)
    assert (read.at, read.patience, read.leaving) == (NOW, PATIENCE, True)
    assert read.since == {"loop": 3.5, "slots": 4.25} and read.stack == ["f (a b.py:3)", "g (ü.py:4)"]
    for broken in (b"", written[:-1], b"7 1 x 300.0 0\nw\n\n.\n", b"7\n.\n", b"\xff\n\n\n.\n"):
        assert Pulse.decode(broken) is None
    long = Pulse.decode(_pulse(stack=("x" * 10_000,)).encode())
    assert long is not None and long.worker == "w1@host/b00t"


def test_NEW_25_who_waits_for_a_server_does_not_stand() -> None:
    lib, own = "/venv/lib/python3.11/site-packages", "tick (/app/shop.py:3)"
    poll = f"poll ({lib}/kombu/utils/eventio.py:84)"
    connect = (f"sleep ({sys.prefix}/x.py:1)", f"retry_over_time ({lib}/kombu/utils/functional.py:318)")
    stdlib = f"read ({subprocess.__file__}:1)"
    assert is_waiting([poll, f"start ({lib}/celery/worker/worker.py:1)"])
    assert is_waiting([stdlib, poll, own]) and is_waiting(connect[1:])
    assert not is_waiting([own, poll]) and not is_waiting([stdlib, f"emit ({lib}/celery/app/log.py:1)", poll])
    assert not is_waiting([])
    text = 'Stack:\n  File "/app/shop.py", line 3 in tick\n\nStack:\n  File "b", line 1 in g\n'
    assert frames_in(text) == (own,)


def test_NEW_25_the_probe_imports_neither_celery_nor_what_it_brings() -> None:
    code = "import celery_poison.alive, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {"billiard", "celery", "click", "kombu", "redis", "json", "dataclasses"}


def test_who_imports_the_package_alone_has_its_modules_by_name() -> None:
    code = "import celery_poison; print(celery_poison.signals.__name__, celery_poison.quarantine.__name__)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["celery_poison.signals", "celery_poison.quarantine"]
    assert not hasattr(celery_poison, "no_such_module")
