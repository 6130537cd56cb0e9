"""Writes a failing test of a message in quarantine (NEW-21): self-contained, arguments as literals.

All that a publisher has put into the message is hostile: it gets into the file as ASCII literals of decoded
JSON, or as base64, and nowhere else. The file is made in one pass, so that nothing is filled into what was.
"""

from __future__ import annotations

import base64
import hashlib
import keyword
import math
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from celery import Celery
from celery.app.task import Context
from kombu.serialization import prepare_accept_content

from celery_poison.errors import IllegalTransition
from celery_poison.headers import OURS
from celery_poison.keep.arguments import HIDDEN, Redact, call_in, hidden_in, redacted
from celery_poison.keep.body import BodyRefused, json_of, unpacked
from celery_poison.model import MessageRecord, StoredMessage

#: Levels of lists and dictionaries that a Python file may have, and bytes of a body.
_DEEPEST, _LARGEST = 60, 8 << 20
#: Characters up to which a value stands in one line.
_LINE = 90
#: Seconds and MiB that a run may take, where nothing is known.
SECONDS, MEMORY_MIB = 60, 2048

#: Headers of Celery's that no attribute of its ``Context`` is named for, and the broker's.
_CELERYS = ("lang", "task", "argsrepr", "kwargsrepr", "compression", "x-death", "x-delivery-count")

PICKLE = ("application/x-python-serialize", "application/pickle")


class TaskCall(NamedTuple):
    """The arguments that a task is called with.

    Attributes:
        shown: the same, without what ``poison_redact`` hides.
        pickled: in place of both, a body that is opened by the test only.
        headers: that the task finds in ``self.request.headers``; ``shown_headers``: as ``shown``.
    """

    args: Any = ()
    kwargs: Any = None
    shown: tuple[Any, Any] | None = None
    pickled: bytes | None = None
    headers: Mapping[str, Any] = {}
    shown_headers: Mapping[str, Any] = {}


class Repro(NamedTuple):
    """A test file.

    Attributes:
        name: of the file.
        hidden: how many values are to be filled in.
    """

    name: str
    text: str
    hidden: int


def call_of(
    app: Celery, redact: Redact, task: str, stored: StoredMessage, *, pickled: bool = False
) -> TaskCall:
    """Return the call that a message asks for; a pickled one is not opened.

    Raises:
        BodyRefused: it is not JSON, and ``pickled`` is not set or it is no pickle; or too large, or too deep.
        BodyBroken: it says JSON and is none, or holds no arguments.
    """
    headers = _headers_of(stored)
    shown_headers = hidden_in(redact, headers)
    if pickled and stored.content_type in PICKLE:
        if not {*PICKLE} & prepare_accept_content(app.conf.accept_content):
            raise BodyRefused("it is pickled, and accept_content has no pickle: no worker opens it either")
        body = unpacked(stored, _LARGEST)
        return TaskCall(pickled=body, headers=headers, shown_headers=shown_headers)
    body = json_of(stored, _LARGEST)
    args, kwargs, _ = call_in(body)
    if _depth(body) > _DEEPEST:
        raise BodyRefused("its arguments are nested too deeply for a Python file")
    shown_args, shown_kwargs, _ = call_in(redacted(app, redact, task, body))
    shown = shown_args, shown_kwargs
    return TaskCall(args, kwargs, shown, headers=headers, shown_headers=shown_headers)


def _headers_of(stored: StoredMessage) -> dict[str, Any]:
    """Return the headers a task reads in ``self.request.headers``: neither Celery's nor ours, JSON only."""
    return {
        name: value
        for name, value in stored.headers.items()
        if isinstance(name, str)
        and name not in (*_CELERYS, *OURS)
        and name not in vars(Context)
        and _depth(value) <= _DEEPEST
        and _is_json(value)
    }


def _is_json(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_json(each) for key, each in value.items())
    if isinstance(value, list):
        return all(map(_is_json, value))
    return value is None or type(value) in (bool, int, float, str)


def _depth(value: Any) -> int:
    level, deep = [value], 0
    while level:
        deep += 1
        level = [
            each
            for held in level
            if isinstance(held, (list, dict))
            for each in (held.values() if isinstance(held, dict) else held)
        ]
    return deep


def place_of(app: Celery) -> str:
    """Return where an app is imported from, as ``module:attribute``.

    Raises:
        IllegalTransition: no module holds it by a name.
    """
    for name, module in [*sys.modules.items()]:
        if name == "__main__" or name.startswith(("celery.", "celery_poison.")):
            continue
        held = vars(module) if hasattr(module, "__dict__") else {}
        for attribute, value in [*held.items()]:
            if value is app and _is_name(f"{name}.{attribute}"):
                return f"{name}:{attribute}"
    raise IllegalTransition("no module holds this app by a name, so that no test could import it")


def _is_name(text: str) -> bool:
    return all(part.isidentifier() and not keyword.iskeyword(part) for part in text.split("."))


def repro_of(app: Celery, record: MessageRecord, stored: StoredMessage, call: TaskCall) -> Repro:
    """Return the test of a message.

    Raises:
        IllegalTransition: this app does not know its task, or see :func:`place_of`.
    """
    if record.task not in app.tasks:
        raise IllegalTransition(
            f"this app does not know the task {record.task!r}: its code is needed for a test"
        )
    word = re.sub(r"[^a-z0-9]+", "_", record.task.lower())[-60:].strip("_") or "task"
    digest = hashlib.sha256(record.mid.encode("utf-8", "replace")).hexdigest()[:8]
    retries = stored.headers.get("retries")
    known, limit = record.evidence, app.tasks[record.task].time_limit
    hidden: list[str] = []
    args, kwargs = (
        ("[]", "{}")
        if call.pickled is not None or call.shown is None
        else (_literal(value, shown, name, hidden) for value, shown, name in _pairs(call))
    )
    values = {
        "app": ascii(place_of(app)),
        "task": ascii(record.task),
        "id": ascii(record.id),
        "retries": str(retries if type(retries) is int and 0 <= retries < 1 << 31 else 0),
        "seconds": str(math.ceil(_soft_limit(app, record, stored) or known.time_limit_s or limit or SECONDS)),
        "memory": str(int(known.limit_kb or MEMORY_MIB << 10) >> 10),
        "args": args,
        "kwargs": kwargs,
        "headers": _literal(dict(call.headers), call.shown_headers, "headers", hidden),
        "pickled": ascii(base64.b64encode(call.pickled or b"").decode()),
        "word": word,
    }
    text = re.sub(r"@(\w+)@", lambda found: values[found[1]], _TEMPLATE)
    return Repro(f"test_{word}_{digest}.py", text, len(hidden))


def _soft_limit(app: Celery, record: MessageRecord, stored: StoredMessage) -> float | None:
    """Return the soft time limit in seconds, if that is what the task failed of; no test can raise it."""
    if not record.evidence.exception.endswith("SoftTimeLimitExceeded"):
        return None
    limits = stored.headers.get("timelimit")
    asked = limits[1] if isinstance(limits, list) and len(limits) == 2 else None
    for limit in (asked, app.tasks[record.task].soft_time_limit, app.conf.task_soft_time_limit):
        if isinstance(limit, (int, float)) and 0 < limit < math.inf:
            return float(limit)
    return None


def _pairs(call: TaskCall) -> Iterator[tuple[Any, Any, str]]:
    args, kwargs = call.shown or ([], {})
    yield [*call.args], args, "args"
    yield call.kwargs, kwargs, "kwargs"


def _literal(value: Any, shown: Any, name: str, hidden: list[str], indent: int = 4) -> str:
    """Return a value as Python; what is hidden as a call that says so."""
    if shown == HIDDEN != value:
        hidden.append(name)
        return f"fill_in({name!a})"
    if isinstance(value, list):
        parts = [
            _literal(each, also, f"{name}[{n}]", hidden, indent + 4)
            for n, (each, also) in enumerate(zip(value, shown, strict=False))
        ]
        return _bracketed("[]", parts, indent)
    if isinstance(value, Mapping):
        parts = [
            f"{key!a}: {_literal(value[key], shown[key], f'{name}[{key!a}]', hidden, indent + 4)}"
            for key in value
        ]
        return _bracketed("{}", parts, indent)
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({str(value)!a})"
    if value is None or type(value) in (bool, int, float, str):
        return ascii(value)
    raise BodyRefused("its arguments hold values that JSON does not have")


def _bracketed(brackets: str, parts: list[str], indent: int) -> str:
    begin, end = brackets[0], brackets[1]
    line = f"{begin}{', '.join(parts)}{end}"
    if len(line) + indent <= _LINE and "\n" not in line:
        return line
    space = " " * (indent + 4)
    return f"{begin}\n{''.join(f'{space}{part},{chr(10)}' for part in parts)}{' ' * indent}{end}"


_TEMPLATE = '''\
"""Does a task survive the message that it died of? Written by `celery poison repro`.

The task runs for real, in a process of its own: run this where it may do its work.
"""

import base64
import os
import pickle
import resource
import signal
import subprocess
import sys
from importlib import import_module

APP = @app@
TASK = @task@
ID = @id@
RETRIES = @retries@
#: For the task, and for what comes before it.
SECONDS, STARTING = @seconds@, 60
MEMORY_MIB = @memory@
PICKLED = @pickled@
BEGUN, ENDED, RAISED = "-- the task begins --", "-- the task has ended --", "-- the task raised "


def fill_in(name):
    raise AssertionError(f"poison_redact hides {name}: write its value in place of fill_in(...)")


def arguments():
    args = @args@
    kwargs = @kwargs@
    headers = @headers@
    return args, kwargs, headers


def run():
    """Run the task in this process, which may die of it."""
    sys.path.insert(0, os.getcwd())
    module, _, name = APP.partition(":")
    app = getattr(import_module(module), name)
    app.loader.import_default_modules()
    args, kwargs, headers = arguments()
    if PICKLED:
        args, kwargs = pickle.loads(base64.b64decode(PICKLED))[:2]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_MIB << 20, MEMORY_MIB << 20))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    print(BEGUN, flush=True)
    done = app.tasks[TASK].apply(args, kwargs, task_id=ID, retries=RETRIES, headers=headers or None)
    kind = type(done.result).__name__
    # apply() raises nothing: it returns what the task raised.
    if done.state in ("FAILURE", "REJECTED") or kind == "QuarantineRequested":
        print(done.traceback, file=sys.stderr)
        print(f"\\n{RAISED}{kind}", flush=True)
    else:
        print(ENDED, flush=True)


def end():
    """Run the task in a process of its own; return how that ended, and what it said."""
    command = [sys.executable, "-X", "faulthandler", os.path.abspath(__file__)]
    try:
        # In a session of its own: a task may kill its process group.
        done = subprocess.run(
            command, capture_output=True, timeout=SECONDS + STARTING, check=False, start_new_session=True
        )
    except subprocess.TimeoutExpired as error:
        return f"ran for longer than {SECONDS} s", error.stderr or b""
    if BEGUN.encode() not in done.stdout:
        return "could not begin", done.stderr
    if done.returncode == -signal.SIGALRM:
        return f"ran for longer than {SECONDS} s", done.stderr
    if done.returncode < 0:
        return f"died by {signal.Signals(-done.returncode).name}", done.stderr
    if RAISED.encode() in done.stdout:
        return "raised " + done.stdout.rpartition(RAISED.encode())[2].split()[0].decode(), done.stderr
    if done.returncode or ENDED.encode() not in done.stdout:
        return f"ended its process with exit status {done.returncode}", done.stderr
    return "", b""


def test_@word@_survives():
    arguments()
    how, said = end()
    assert not how, f"{TASK} {how}\\n{said[-4000:].decode(errors='replace')}"


if __name__ == "__main__":
    run()
'''
