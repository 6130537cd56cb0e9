"""Loads the Lua scripts, holds each to its header, and calls them by the names given there."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import cache
from importlib import resources
from typing import Any

import redis
from redis.exceptions import NoScriptError

from celery_poison.errors import (
    DecisionPending,
    Fenced,
    IllegalTransition,
    MessageNotFound,
    PoisonError,
    QuarantineFull,
    StaleDelivery,
)
from celery_poison.ledger.connection import clear_errors
from celery_poison.ledger.keys import Keys


class Code(StrEnum):
    """Every return code of every script."""

    OK = "OK"
    DONE = "DONE"
    KEPT = "KEPT"
    HELD = "HELD"
    ALIVE = "ALIVE"
    STALE = "STALE"
    FENCED = "FENCED"
    MISSING = "MISSING"
    ILLEGAL = "ILLEGAL"
    BUSY = "BUSY"
    CONFLICT = "CONFLICT"
    FULL = "FULL"


_SENTENCES: Mapping[Code, tuple[type[Exception], str]] = {
    Code.STALE: (StaleDelivery, "the message has a newer start; this one may not decide about it any more"),
    Code.FENCED: (Fenced, "another monitor took over"),
    Code.MISSING: (MessageNotFound, "no such message in quarantine"),
    Code.ILLEGAL: (IllegalTransition, "the message is in state {0}, which does not allow this"),
    Code.FULL: (QuarantineFull, "quarantine is full: see poison_max_messages and poison_keep_unprocessable"),
    Code.BUSY: (DecisionPending, "{0} is deciding about this message at this moment; try again"),
}

_HEADER = re.compile(r"-- (KEYS|ARGV)\[(\d+)\] (\w+)")


class Script:
    """One Lua file: its text, and the names of its keys and arguments as its header declares them."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = _prelude(text) + text
        self.keys = self._declared(text, "KEYS")
        self.arguments = self._declared(text, "ARGV")

    def keys_of(self, known: Mapping[str, str]) -> list[str]:
        """Return its keys, in their order."""
        return [known[word] for word in self.keys]

    def values_of(self, known: Mapping[str, Any], rest: Sequence[Any] = ()) -> list[Any]:
        """Return its arguments, in their order; ``rest`` is a list that stands for the last one."""
        fixed = self.arguments[:-1] if rest else self.arguments
        return [*(known[word] for word in fixed), *rest]

    def _declared(self, text: str, kind: str) -> list[str]:
        rows = [(int(n), word) for k, n, word in _HEADER.findall(text) if k == kind]
        if [n for n, _ in rows] != list(range(1, len(rows) + 1)):
            raise ValueError(f"{self.name}.lua: its header does not declare {kind} in order")
        used = {int(n) for n in re.findall(kind + r"\[(\d+)\]", text)}
        if used - {n for n, _ in rows}:
            raise ValueError(f"{self.name}.lua uses {kind} that its header does not declare")
        return [word for _, word in rows]


#: Parts that scripts share; each may use those before it.
_PARTS = (
    *("journal", "start", "gate", "presence", "parking", "blocks", "proposals", "counts", "lineage"),
    *("effects", "outbox", "tied"),
)


def _prelude(text: str) -> str:
    """Return what ``text`` uses of the shared parts: Redis makes their functions anew in every call."""
    found = ""
    for part in map(_read, (f"_{name}" for name in reversed(_PARTS))):
        names = "|".join(re.findall(r"^local (?:function )?(\w+)", part, re.MULTILINE))
        if re.search(rf"\b({names})\b", found + text):
            found = part + found
    return found


def _read(name: str) -> str:
    return resources.files(__package__).joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")


@cache
def script(name: str) -> Script:
    """Return the script ``lua/<name>.lua``, checked against its header."""
    return Script(name, _read(name))


class Batch:
    """A script that runs another one many times: its text, and the names of its keys and arguments.

    Attributes:
        keys: what all runs have in common; ``arguments`` likewise.
        own_keys: what each run brings along after those; ``own_arguments`` likewise.
    """

    def __init__(self, wanted: Script, own: Collection[str]) -> None:
        self.name = f"{wanted.name} of {sorted(own)}"
        self.keys, self.own_keys = _parted(wanted.keys, own)
        self.arguments, self.own_arguments = _parted(wanted.arguments, own)
        keys = _places("all_keys", wanted.keys, self.keys, self.own_keys, before=0)
        arguments = _places("all_values", wanted.arguments, self.arguments, self.own_arguments, before=1)
        self.text = (
            "local all_keys, all_values, replies = KEYS, ARGV, {}\n"
            f"local function one(KEYS, ARGV)\n{wanted.text}\nend\n"
            f"for i = 0, all_values[1] - 1 do replies[i + 1] = one({{{keys}}}, {{{arguments}}}) end\n"
            "return cjson.encode(replies)\n"
        )


def _parted(words: Iterable[str], own: Collection[str]) -> tuple[list[str], list[str]]:
    words = list(words)
    return [word for word in words if word not in own], [word for word in words if word in own]


def _places(table: str, words: Iterable[str], common: list[str], own: list[str], before: int) -> str:
    """Return where run number i finds each of its words, as Lua."""
    first = 1 + before
    return ", ".join(
        f"{table}[{first + common.index(word)}]"
        if word in common
        else f"{table}[{first + len(common) + own.index(word)} + i * {len(own)}]"
        for word in words
    )


@cache
def batch(name: str, own: frozenset[str]) -> Batch:
    """Return what runs the script ``name`` many times, each run with words of its ``own``."""
    return Batch(script(name), own)


def names() -> list[str]:
    """Return the names of all scripts."""
    files = resources.files(__package__).joinpath("lua").iterdir()
    return sorted(f.name.removesuffix(".lua") for f in files if not f.name.startswith("_"))


class Runner:
    """Runs scripts on one client; unknown names of keys or arguments are programming errors."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._scripts: dict[str, Any] = {}

    def __call__(
        self, name: str, keys: Mapping[str, str], arguments: Mapping[str, Any], rest: Sequence[Any] = ()
    ) -> list[Any]:
        """Run ``name`` and return its reply, the code first; codes may be anything but errors.

        Args:
            rest: values for the last declared argument, which stands for a list.

        Raises:
            StaleDelivery, Fenced, MessageNotFound, IllegalTransition, DecisionPending: by return code.
            LedgerUnavailable: Redis is away or refuses.
        """
        wanted = script(name)
        with clear_errors(name):
            run = self._registered(wanted)
            return _checked(run(keys=wanted.keys_of(keys), args=wanted.values_of(arguments, rest)))

    def many(
        self, name: str, calls: Iterable[tuple[Mapping[str, str], Mapping[str, Any]]]
    ) -> list[list[Any]]:
        """Run ``name`` once for each (keys, arguments), in one round trip; return the replies in order.

        Raises: as a single call; the other calls may have been carried out.
        """
        wanted = script(name)
        with clear_errors(name):
            sha = self._registered(wanted).sha
            words = [[*wanted.keys_of(keys), *wanted.values_of(arguments)] for keys, arguments in calls]
            replies = self._evaluated(sha, len(wanted.keys), words)
            if any(isinstance(reply, NoScriptError) for reply in replies):  # then not one was carried out
                self._client.script_load(wanted.text)
                replies = self._evaluated(sha, len(wanted.keys), words)
            for reply in replies:
                if isinstance(reply, Exception):
                    raise reply
        return [_checked(reply) for reply in replies]

    def each(
        self,
        name: str,
        keys: Mapping[str, str],
        arguments: Mapping[str, Any],
        calls: Sequence[tuple[Mapping[str, str], Mapping[str, Any]]],
    ) -> list[list[Any] | PoisonError]:
        """Run ``name`` once for each of ``calls``, in one script; what they have in common is sent once.

        Args:
            keys: of every call; ``arguments`` likewise.
            calls: keys and arguments of each; all have the same names.

        Returns the replies in order; in place of one stands what a single call would raise.

        Raises:
            LedgerUnavailable: Redis is away or refuses; some calls may have been carried out.
        """
        if not calls:
            return []
        wanted = batch(name, frozenset(word for mapping in calls[0] for word in mapping))
        own_keys = (own[word] for own, _ in calls for word in wanted.own_keys)
        own_values = (own[word] for _, own in calls for word in wanted.own_arguments)
        with clear_errors(name):
            replies = self._registered(wanted)(
                keys=[*(keys[word] for word in wanted.keys), *own_keys],
                args=[len(calls), *(arguments[word] for word in wanted.arguments), *own_values],
            )
        # One text for all replies: to read it takes a tenth of what their many small parts would.
        return [_settled(reply) for reply in json.loads(_text(replies))]

    def _registered(self, wanted: Script | Batch) -> Any:
        found = self._scripts.get(wanted.name)
        if found is None:
            found = self._scripts[wanted.name] = self._client.register_script(wanted.text)
        return found

    def _evaluated(self, sha: str, keys: int, calls: Sequence[Sequence[Any]]) -> list[Any]:
        pipe = self._client.pipeline(transaction=False)
        for words in calls:
            pipe.evalsha(sha, keys, *words)
        replies: list[Any] = pipe.execute(raise_on_error=False)
        return replies


def _checked(reply: list[Any]) -> list[Any]:
    code = Code(_text(reply[0]))
    error = _SENTENCES.get(code)
    if error is not None:
        kind, sentence = error
        raise kind(sentence.format(*[_text(part) for part in reply[1:]]))
    return [code, *reply[1:]]


def _settled(reply: list[Any]) -> list[Any] | PoisonError:
    try:
        return _checked(reply)
    except PoisonError as error:
        return error


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


class Caller:
    """Calls scripts with the namespace's keys.

    Args:
        client: from :func:`celery_poison.ledger.connection.open_redis`.
        keys: the namespace's keys.
        journal_maxlen: entries the journal keeps, approximately.
    """

    def __init__(self, client: redis.Redis, keys: Keys, journal_maxlen: int = 1_000_000) -> None:
        self.client = client
        self.keys = keys
        self._maxlen = journal_maxlen
        self._run = Runner(client)
        self._fixed = {name: value for name, value in vars(keys).items() if name != "prefix"}

    def _call(self, name: str, keys: Mapping[str, str], /, *, rest: Any = (), **arguments: Any) -> Any:
        arguments["maxlen"] = self._maxlen
        return self._run(name, {**self._fixed, **keys}, arguments, rest)

    def _call_many(self, name: str, calls: Iterable[tuple[Mapping[str, str], Mapping[str, Any]]]) -> Any:
        fixed, common = self._fixed, {"maxlen": self._maxlen}
        return self._run.many(name, (({**fixed, **keys}, {**common, **own}) for keys, own in calls))

    def _call_each(
        self, name: str, calls: Iterable[tuple[Mapping[str, str], Mapping[str, Any]]], **common: Any
    ) -> list[list[Any] | PoisonError]:
        return self._run.each(name, self._fixed, {"maxlen": self._maxlen, **common}, [*calls])

    def _of(self, mid: str, id: str) -> dict[str, str]:
        return {"lineage": self.keys.lineage(id), "message": self.keys.message(mid)}


def fence_of(number: int | None) -> str:
    """Return a fencing number as scripts take it; empty for who needs none."""
    return "" if number is None else str(number)


def pairs(flat: Sequence[bytes]) -> dict[str, str]:
    """Return the flat reply of HGETALL as a dictionary of text."""
    words = [word.decode("utf-8", "replace") for word in flat]
    return dict(zip(words[::2], words[1::2], strict=True))
