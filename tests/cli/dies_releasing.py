"""A command line that is killed in the middle of a release: DIES_AT="publish 50": at its 50th message.

What one script does for many messages is one step for all of them: it dies before that.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from amqp import Channel
from redis import ResponseError
from redis.connection import AbstractConnection

from celery_poison.ledger import decisions as transitions
from celery_poison.ledger.scripts import Scripts
from tests.apps.factory import build_app

app = build_app(os.environ, current=True)
# What the dead one reserved is abandoned at once.
transitions.DECISION_PATIENCE_MS = 0

#: The steps that are one command to Redis for many messages, and a word of each that no other has.
STEPS = {"read": "properties", "publish": "LPUSH"}
#: The steps that are one script for many.
SCRIPTS = ("decide", "released")
_reached = Counter[str]()


def _dies_at(step: str, messages: int = 1) -> bool:
    named, _, number = os.environ.get("DIES_AT", "").partition(" ")
    before = _reached[step]
    _reached[step] += messages
    return named == step and before < int(number) <= _reached[step]


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


_call, _each, _send_command, _pack_commands, _publish, _confirm = (
    Scripts.call,
    Scripts.call_each,
    AbstractConnection.send_command,
    AbstractConnection.pack_commands,
    Channel._basic_publish,
    Channel.basic_publish_confirm,
)


NO_KEYS: dict[str, str] = {}


def _run_each(self: Any, name: str, calls: Iterable[Any], **common: Any) -> Any:
    calls, step = [*calls], name.rpartition(":")[2]
    if step in SCRIPTS and _dies_at(step, len(calls)):
        _die()
    return _each(self, name, calls, **common)


def _run(self: Any, name: str, keys: Any = NO_KEYS, /, *, rest: Any = None, **arguments: Any) -> Any:
    if name == "leave_notice" and _dies_at("tell", len(rest)):
        _die()
    return _call(self, name, keys, rest=rest, **arguments)


def _command(self: Any, *words: Any, **options: Any) -> None:
    step = next((name for name, word in STEPS.items() if word in words), None)
    if step and _dies_at(step, _messages(step, words)):
        _die()
    _send_command(self, *words, **options)


def _pack(self: Any, commands: Iterable[Sequence[Any]]) -> Any:
    """Let Redis answer those before a step, of many that are sent together, and die."""
    rows = [*commands]
    for number, words in enumerate(rows):
        step = next((name for name, word in STEPS.items() if word in words), None)
        if step and _dies_at(step, _messages(step, words)):
            if number:
                self.send_packed_command(_pack_commands(self, rows[:number]))
            for _ in range(number):
                with suppress(ResponseError):
                    self.read_response()
            _die()
    return _pack_commands(self, rows)


def _messages(step: str, words: Sequence[Any]) -> int:
    """Of: LPUSH queue message ..., and EVALSHA sha 1 key prefix n field ... mid ..."""
    return len(words) - 2 if step == "publish" else len(words) - 6 - int(words[5])


def _send(self: Any, *words: Any, **options: Any) -> Any:
    if _dies_at("publish"):
        _die()
    _publish(self, *words, **options)
    if _dies_at("sent"):
        _die()


def _send_and_wait(self: Any, *words: Any, **options: Any) -> Any:
    _confirm(self, *words, **options)
    if _dies_at("confirmed"):
        _die()


Scripts.call = _run  # type: ignore[method-assign]
Scripts.call_each = _run_each  # type: ignore[method-assign]
AbstractConnection.send_command = _command  # type: ignore[method-assign]
AbstractConnection.pack_commands = _pack  # type: ignore[method-assign]
Channel._basic_publish = _send
Channel.basic_publish_confirm = _send_and_wait
