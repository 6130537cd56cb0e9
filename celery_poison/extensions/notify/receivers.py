"""Receivers of notifications: a URL, a command or a function, each in a process of its own.

So a receiver can always be ended, and whatever it does, to memory or to locks, it does not to a worker. For a
URL or a function that process is this file, of the standard library alone; chats are Apprise's.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from tempfile import TemporaryFile
from typing import IO, Any
from urllib.parse import unquote, urlsplit

#: Seconds that telling one receiver may take, and those of them that a server may take for each answer.
LIMIT, PATIENCE = 10.0, 8.0
#: Schemes of a webhook; the address of anything else is Apprise's.
_WEB = ("http", "https")


class NotDelivered(Exception):
    """A receiver did not get a notification; the text says why, without secrets."""


class Receiver:
    """One receiver that is not in this process.

    Args:
        target: a URL, ``module:function``, or the words of a command.
        limit: seconds that telling it may take.

    Attributes:
        name: for people, without secrets.
        key: the same as long as the target is.
    """

    def __init__(self, target: str | Sequence[str], limit: float = LIMIT) -> None:
        self._target = target
        self._limit = limit
        self._is_url = isinstance(target, str) and "://" in target
        self.name = _name(target)
        self.key = hashlib.sha256(json.dumps(target).encode()).hexdigest()[:8]

    def tell(self, payload: Mapping[str, Any]) -> None:
        """Hand over a notification.

        Raises:
            NotDelivered: it was not taken in time, or refused.
        """
        if isinstance(self._target, str):
            words: Sequence[str] = [sys.executable, "-I", __file__]
            sent: Mapping[str, Any] = {"to": self._target, "path": [*map(str, sys.path)], "payload": payload}
        else:
            words, sent = self._target, payload
        try:
            status, output = self._run(words, json.dumps(sent).encode())
        except (OSError, ValueError) as error:
            raise NotDelivered(getattr(error, "strerror", None) or type(error).__name__) from None
        if status:
            raise NotDelivered(output.decode("utf-8", "replace").strip() or f"exit status {status}")

    def _run(self, words: Sequence[str], payload: bytes) -> tuple[int, bytes]:
        from celery_poison.basics.forking import no_fork  # not at the top: a receiver's process does without

        # No pipes: a pool process that is forked meanwhile would hold their ends open.
        with _file() as stdin, _file() as output:
            stdin.write(payload)
            stdin.seek(0)
            # This file says one line; what another receiver says goes where its worker's words go.
            stderr = output if self._is_url else None
            with no_fork():  # nor may it hold the pipe that shows whether the program could be started
                process = subprocess.Popen(
                    [*words], stdin=stdin, stdout=subprocess.DEVNULL, stderr=stderr, start_new_session=True
                )
            try:
                status = process.wait(self._limit)
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                raise NotDelivered(f"no answer within {self._limit:g} s") from None
            output.seek(0)
            return status, output.read()


def _file() -> IO[bytes]:
    if hasattr(os, "memfd_create"):  # there need not be a disk that can be written
        return os.fdopen(os.memfd_create("poison"), "w+b", buffering=0)
    return TemporaryFile(buffering=0)


def _name(target: str | Sequence[str]) -> str:
    if not isinstance(target, str):
        return target[0]
    scheme, has_scheme, _ = target.partition("://")
    if not has_scheme:
        return target
    # The host of a chat's address may be a token.
    return f"{scheme}://{urlsplit(target).hostname if scheme in _WEB else '...'}"


# --- in the process of its own ------------------------------------------------------------------------


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None  # it would be followed by a GET, without the notification


def _post(url: str, payload: Any) -> None:
    headers, parts = {"Content-Type": "application/json", "User-Agent": "celery-poison"}, urlsplit(url)
    if parts.username is not None:  # urllib takes that for a part of the host's name
        secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
        headers["Authorization"] = f"Basic {base64.b64encode(secret).decode()}"
        url = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    request = urllib.request.Request(url, json.dumps(payload).encode(), headers)
    try:
        urllib.request.build_opener(_NoRedirects).open(request, timeout=PATIENCE).close()
    except urllib.error.HTTPError as error:
        sys.exit(f"HTTP {error.code}")
    except Exception as error:  # its text may hold the URL
        reason = getattr(error, "reason", error)
        sys.exit(getattr(reason, "strerror", None) or type(reason).__name__)


def _chat(address: str, payload: Any) -> None:
    logging.disable()  # Apprise logs addresses, and what is said on stderr is shown
    try:
        import apprise
    except ImportError:
        sys.exit("Apprise is not installed: pip install 'celery-poison[notify]'")
    chats = apprise.Apprise()
    try:
        is_known = chats.add(address)
        is_delivered = is_known and chats.notify(body=payload["text"], body_format=apprise.NotifyFormat.TEXT)
    except Exception as error:  # its text may hold the address
        sys.exit(f"Apprise failed: {type(error).__name__}")
    if not is_known:
        sys.exit("Apprise does not know such an address, or something is missing from it")
    if not is_delivered:
        sys.exit("Apprise could not deliver it")


def main() -> None:
    """Tell a URL or a function what standard input says."""
    order = json.load(sys.stdin)
    to, payload = order["to"], order["payload"]
    if to.startswith(tuple(f"{scheme}://" for scheme in _WEB)):
        _post(to, payload)
        return
    sys.path[:] = order["path"]
    if "://" in to:
        _chat(to, payload)
    else:
        module, _, function = to.partition(":")
        getattr(import_module(module), function)(payload)


if __name__ == "__main__":
    main()
