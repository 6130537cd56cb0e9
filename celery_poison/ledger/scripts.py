"""Loads the Lua scripts, holds each to its header, and calls them by the names given there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from functools import cache
from importlib import resources
from typing import Any

import redis

from celery_poison.basics.rooms import all_rooms
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
from celery_poison.model import Start


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


_SENTENCES: Mapping[Code, tuple[type[PoisonError], str]] = {
    Code.STALE: (StaleDelivery, "the message has a newer start; this one may not decide about it any more"),
    Code.FENCED: (Fenced, "another monitor took over"),
    Code.MISSING: (MessageNotFound, "no such message in quarantine"),
    Code.ILLEGAL: (IllegalTransition, "the message is in state {0}, which does not allow this"),
    Code.FULL: (
        QuarantineFull,
        "quarantine is full: see poison_max_messages, poison_keep_unprocessable and its _bytes",
    ),
    Code.BUSY: (DecisionPending, "{0} is deciding about this message at this moment; try again"),
}

_HEADER = re.compile(r"-- (KEYS|ARGV)\[(\d+)\] (\w+)")
#: Where a script calls what extensions have for it, in ``lua/_at_NAME.lua``, with these arguments.
_HOOK = re.compile(r"^--@ (\w+)\((.*)\)$", re.MULTILINE)


class Script:
    """One Lua file: its text, and the names of its keys and arguments as its header declares them.

    Args:
        parts: what it may use of its own package, beside the parts that all scripts share.
    """

    def __init__(self, name: str, text: str, parts: Sequence[str] = ()) -> None:
        self.name = name
        self.keys = self._declared(text, "KEYS")
        self.arguments = self._declared(text, "ARGV")
        text = _HOOK.sub(self._at_hook, text)
        self.text = _prelude(text, parts) + text

    def _at_hook(self, hook: re.Match[str]) -> str:
        """Return the code of extensions at a hook, with own keys: if it fails, the script goes on."""
        code = ""
        for room in all_rooms():
            file = resources.files(room).joinpath("lua", f"_at_{hook[1]}.lua")
            if file.is_file():
                own, after = file.read_text(encoding="utf-8"), len(self.keys)
                self.keys += self._declared(own, "KEYS")
                keys = ", ".join(f"KEYS[{number + 1}]" for number in range(after, len(self.keys)))
                code += f"pcall(function(KEYS, ...)\n{own}end, {{{keys}}}, {hook[2]})\n"
        return code

    def keys_of(self, by_name: Mapping[str, str]) -> list[str]:
        """Return its keys, in their order."""
        return [by_name[word] for word in self.keys]

    def values_of(self, by_name: Mapping[str, Any], rest: Sequence[Any] | None = None) -> list[Any]:
        """Return its arguments, in their order; ``rest`` is a list that stands for the last one."""
        fixed = self.arguments if rest is None else self.arguments[:-1]
        return [*(_named(word, by_name[word]) for word in fixed), *([] if rest is None else rest or [""])]

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
    *("journal", "groups", "start", "gate", "presence", "parking", "blocks", "counts"),
    *("lineage", "outbox", "tied", "sizes"),
)


def _prelude(text: str, own_parts: Sequence[str]) -> str:
    """Return the shared parts that ``text`` uses: Redis makes their functions anew in every call."""
    prelude = ""
    for part in (*own_parts, *map(_read, (f"_{name}" for name in reversed(_PARTS)))):
        names = "|".join(re.findall(r"^local (?:function )?(\w+)", part, re.MULTILINE))
        if re.search(rf"\b({names})\b", prelude + text):
            prelude = part + prelude
    return prelude


def _read(name: str, package: str = __package__) -> str:
    return resources.files(package).joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")


@cache
def script(name: str) -> Script:
    """Return the script ``lua/<name>.lua``, checked against its header.

    Args:
        name: of an extension's own script with its package before it: ``celery_poison.extensions.x:name``.
    """
    package, _, own = name.rpartition(":")
    files = resources.files(package).joinpath("lua").iterdir() if package else ()
    own_parts = (f.name.removesuffix(".lua") for f in files if re.match("_(?!at_)", f.name))
    parts = [_read(part, package) for part in own_parts]
    return Script(own, _read(own, package or __package__), parts)


@cache
def batch(name: str, own_keys: tuple[str, ...], own: tuple[str, ...], as_text: bool) -> str:
    """Return the text of a script that runs ``lua/<name>.lua`` many times.

    Its keys, and its arguments, are those that all runs have in common, and then those of each.

    Args:
        own_keys, own: names of the keys and arguments of each run, in their order.
        as_text: it replies with one JSON array of the replies.
    """
    wanted = script(name)
    kind, names, declared = ("keys", own_keys, wanted.keys) if own_keys else ("values", own, wanted.arguments)
    one = f"one({_of_one('keys', wanted.keys, own_keys)}, {_of_one('values', wanted.arguments, own)})"
    return (
        "local keys, values, replies = KEYS, ARGV, {}\n"
        f"local function one(KEYS, ARGV)\n{wanted.text}\nend\n"
        f"for i = 0, (#{kind} - {len(declared) - len(names)}) / {len(names)} - 1 do\n"
        f"  replies[i + 1] = {one}\nend\n"
        f"return {'cjson.encode(replies)' if as_text else 'replies'}\n"
    )


def _of_one(table: str, declared: Sequence[str], own: Sequence[str]) -> str:
    """Return a table of Lua with what is declared, of run ``i``."""
    common = [word for word in declared if word not in own]
    places = {word: f"{number}" for number, word in enumerate(common, 1)}
    places |= {word: f"{len(common) + number} + i * {len(own)}" for number, word in enumerate(own, 1)}
    return "{" + ", ".join(f"{table}[{places[word]}]" for word in declared) + "}"


def names(package: str = __package__) -> list[str]:
    """Return the names of all scripts of a package, without that; the ledger's own by default."""
    files = resources.files(package).joinpath("lua").iterdir()
    return sorted(f.name.removesuffix(".lua") for f in files if not f.name.startswith("_"))


def _settled(reply: list[Any]) -> list[Any] | PoisonError:
    """Return a reply with its code first, or the error that it is."""
    word, *rest = reply
    code = Code(word if isinstance(word, str) else word.decode())
    if code not in _SENTENCES:
        return [code, *rest]
    kind, sentence = _SENTENCES[code]
    texts = (part.decode("utf-8", "replace") if isinstance(part, bytes) else str(part) for part in rest)
    return kind(sentence.format(*texts))


_NONE: Mapping[str, str] = {}

#: The key of one thing -> the argument that names the thing; of a start also its id.
_OF = {"message": "mid", "lineage": "id", "worker": "worker", "incident": "incident", "lane": "name_of_lane"}


class Scripts:
    """Runs scripts with the namespace's keys; unknown names of keys or arguments are programming errors.

    Args:
        client: from :func:`celery_poison.ledger.connection.open_redis`.
        keys: the namespace's keys.
        journal_maxlen: entries the journal keeps, approximately.
    """

    def __init__(self, client: redis.Redis, keys: Keys, journal_maxlen: int = 1_000_000) -> None:
        self.client = client
        self.keys = keys
        self._by_text: dict[str, Any] = {}
        self._fixed = keys.fixed
        prefixes = {"lanes": keys.lane(""), "workers": keys.worker(""), "messages": keys.message("")}
        prefixes |= {"alive": keys.alive, "ended": keys.endings, "children": keys.children}
        self._common = {**prefixes, "maxlen": journal_maxlen}

    def call(
        self, name: str, own_keys: Mapping[str, str] = _NONE, /, *, rest: Any = None, **arguments: Any
    ) -> list[Any]:
        """Run ``name`` and return its reply, the code first; codes may be anything but errors.

        Args:
            name: as of :func:`script`.
            own_keys: beside those that the whole namespace has, and those of what ``arguments`` name.
            rest: what stands for the last declared argument, which is a list: words, tuples of them, or a
                mapping, whose keys and values are meant.

        Raises:
            StaleDelivery, Fenced, MessageNotFound, IllegalTransition, DecisionPending: by return code.
            LedgerUnavailable: Redis is away or refuses.
        """
        wanted = script(name)
        start = arguments.get("start")
        named = {"id": start.id, **arguments} if isinstance(start, Start) else arguments
        made = {key: getattr(self.keys, key)(named[word]) for key, word in _OF.items() if word in named}
        keys = wanted.keys_of({**self._fixed, **made, **own_keys})
        values = wanted.values_of({**self._common, **arguments}, None if rest is None else _words(rest))
        with clear_errors(wanted.name):
            reply = _settled(self._registered(wanted.text)(keys=keys, args=values))
        if isinstance(reply, PoisonError):
            raise reply
        return reply

    def call_each(
        self,
        name: str,
        calls: Iterable[tuple[Mapping[str, str], Mapping[str, Any]]],
        *,
        as_text: bool = False,
        **common: Any,
    ) -> list[Any]:
        """Run ``name`` once for each of ``calls``, in one script and one round trip.

        Args:
            calls: keys and arguments of each, of the same names; the others are those of the whole namespace.
            as_text: the replies are numbers and text, which is read faster, and may not be told from bytes.
            common: arguments of every call.

        Returns the replies in order; in place of one stands what a single call would raise.

        Raises:
            LedgerUnavailable: Redis is away or refuses; some calls may have been carried out.
        """
        calls = [*calls]
        if not calls:
            return []
        wanted, common = script(name), {**self._common, **common}
        own_keys = tuple(word for word in wanted.keys if word in calls[0][0])
        own = tuple(word for word in wanted.arguments if word in calls[0][1])
        keys = [self._fixed[word] for word in wanted.keys if word not in own_keys]
        values = [_named(word, common[word]) for word in wanted.arguments if word not in own]
        for keys_of_one, values_of_one in calls:
            keys += [keys_of_one[word] for word in own_keys]
            values += [_named(word, values_of_one[word]) for word in own]
        with clear_errors(wanted.name):
            reply = self._registered(batch(name, own_keys, own, as_text))(keys=keys, args=values)
        replies = json.loads(reply.decode("utf-8", "replace")) if as_text else reply
        return [_settled(each) for each in replies]

    def _registered(self, text: str) -> Any:
        registered = self._by_text.get(text)
        if registered is None:
            registered = self._by_text[text] = self.client.register_script(text)
        return registered


class LedgerPart:
    """A part of the ledger: transitions of things of one kind; it knows the scripts, and no other part."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts

    def _of(self, mid: str, id: str) -> dict[str, str]:
        return {"lineage": self._scripts.keys.lineage(id), "message": self._scripts.keys.message(mid)}


#: What people and programs say, and how many characters of it are kept.
_SAID, LONGEST = frozenset({"note", "reason", "actor", "journalled"}), 2000


def _named(name: str, value: Any) -> Any:
    if name in _SAID and isinstance(value, str) and len(value) > LONGEST:
        value = f"{value[: LONGEST - 1]}…"
    return _word(value)


def _word(value: Any) -> Any:
    """Return a value as scripts take it."""
    if isinstance(value, Start):
        return value.encode()
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace")
    return "" if value is None else int(value) if isinstance(value, bool) else value


def _words(rest: Iterable[Any]) -> list[Any]:
    rows = rest.items() if isinstance(rest, Mapping) else rest
    return [_word(word) for row in rows for word in (row if isinstance(row, tuple) else (row,))]


def pairs(flat: Sequence[bytes]) -> dict[str, str]:
    """Return the flat reply of HGETALL as a dictionary of text."""
    words = [word.decode("utf-8", "replace") for word in flat]
    return dict(zip(words[::2], words[1::2], strict=True))
