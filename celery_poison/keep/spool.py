"""The last link of the chain: files on this machine, while Redis takes nothing (WAS-8).

One file a message, complete or not there at all: it is written beside, synced to disk, and renamed. A worker
of this machine brings it to quarantine when Redis takes it, and removes it then: killed in between, it is
brought once more, and quarantine knows it already.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from celery.utils.log import get_logger

from celery_poison.basics.text import count_of
from celery_poison.errors import ConfigurationError, IllegalTransition, StaleDelivery
from celery_poison.keep.private_files import open_private
from celery_poison.ledger import Ledger
from celery_poison.model import Start
from celery_poison.rules.destinations import Route

logger = get_logger("celery_poison")

#: How the names of files end: a message; being written; nothing that can be read.
_MESSAGE, _PART, _BROKEN = ".json", ".part", ".broken"
#: What a message is called; other files are not ours.
_NAME = "[0-9a-f]" * 32


class Spooled(NamedTuple):
    """One message that quarantine could not take: the arguments of ``QuarantineTransitions.store``."""

    mid: str
    start: Start
    words: Mapping[str, Any]

    def encode(self) -> bytes:
        fields = self.words["fields"].items()
        packed = {
            name: [base64.b64encode(value).decode()] if isinstance(value, bytes) else value
            for name, value in fields
        }
        return json.dumps([self.mid, self.start, {**self.words, "fields": packed}]).encode()

    @classmethod
    def decode(cls, raw: bytes) -> Spooled:
        mid, start, words = json.loads(raw)
        fields = {
            name: base64.b64decode(value[0]) if isinstance(value, list) else value
            for name, value in words["fields"].items()
        }
        return cls(mid, Start(*start), {**words, "fields": fields, "route": Route(*words["route"])})


class Spool:
    """The directory of this machine's workers; it is made if it is not there.

    Raises:
        OSError: it cannot be made, or others could read what is in it.
    """

    def __init__(self, directory: str) -> None:
        self.path = Path(directory)
        with suppress(FileExistsError):
            self.path.mkdir(0o700)
        status, user = self.path.stat(), os.geteuid()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != user or status.st_mode & 0o077:
            is_it = f"{stat.filemode(status.st_mode)} of user {status.st_uid}"
            raise PermissionError(f"{self.path} is {is_it}, not a private directory of user {user}")

    def put(self, message: Spooled) -> None:
        """Keep a message; it survives a loss of power when this returns.

        Raises:
            OSError: the disk is full, or refuses.
        """
        name = hashlib.sha256(message.mid.encode("utf-8", "replace")).hexdigest()[:32]
        part = self.path / f"{name}.{os.getpid()}{_PART}"
        try:
            with open(open_private(part, os.O_WRONLY | os.O_TRUNC), "wb") as file:
                file.write(message.encode())
                file.flush()
                os.fsync(file.fileno())
            part.rename(self.path / f"{name}{_MESSAGE}")
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        # The name of a new file is on disk only when its directory is.
        directory = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def bring_to(self, ledger: Ledger) -> Iterator[str]:
        """Bring every message to quarantine; yield the mids of those that it did not know.

        Raises:
            LedgerUnavailable: Redis still takes nothing; all that is left stays here.
        """
        for file in self._files():
            try:
                message = Spooled.decode(_read(file))
            except FileNotFoundError:
                continue  # another worker was faster
            except Exception:
                self._set_aside(file)
                continue
            new = False
            try:
                new = ledger.quarantine.store(message.mid, message.start, **message.words)
            except IllegalTransition:
                pass  # it was given up: one more copy of it adds nothing
            except StaleDelivery:
                continue  # a copy of it runs: what becomes of that is known before what becomes of this
            except (TypeError, ValueError, AttributeError):  # another version's words
                self._set_aside(file)
                continue
            file.unlink(missing_ok=True)
            if new:
                yield message.mid

    def count(self) -> int:
        """Return how many messages are here, and files that cannot be read."""
        return len(self._files()) + len([*self.path.glob(f"{_NAME}{_BROKEN}")])

    def _files(self) -> list[Path]:
        return sorted(self.path.glob(f"{_NAME}{_MESSAGE}"))

    def _set_aside(self, file: Path) -> None:
        logger.exception("celery_poison: %s cannot be read; it is kept as %s", file, _BROKEN)
        with suppress(FileNotFoundError):
            file.rename(file.with_suffix(_BROKEN))


def _read(file: Path) -> bytes:
    with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as opened:
        return opened.read()


def open_spool(directory: str | None) -> Spool | None:
    """Return the spool of this machine; None where there is none.

    Raises:
        ConfigurationError: its directory cannot be used.
    """
    try:
        return Spool(directory) if directory else None
    except OSError as error:
        raise ConfigurationError(f"poison_spool_directory: {error}") from None


def spooled_here(directory: str | None) -> str:
    """Return a sentence about what lies in the spool of this machine; the empty string for nothing."""
    if not directory or not os.path.isdir(directory):
        return ""  # another machine's
    try:
        number = Spool(directory).count()
    except OSError as error:
        return f"poison_spool_directory cannot be used: {error}"
    return f"{count_of(number, 'message')} that quarantine could not take in {directory}" if number else ""
