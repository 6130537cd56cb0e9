"""A server on the loopback address that is told things: it takes them, refuses them, or never answers."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: Never shown to anybody.
SECRET = "T0p-s3cret"


class Inbox:
    """Use it in a `with`.

    Attributes:
        told: what it was told, each time that it was asked.
        authorization: who the last one said that it is.
        answer: status of its answers; 0: none, 1: one that never ends.
    """

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []
        self.answer = 200
        self.authorization: str | None = None
        self._over = threading.Event()
        inbox = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                assert self.headers["Content-Type"] == "application/json"
                inbox.told.append(json.loads(body))
                inbox.authorization = self.headers["Authorization"]
                if inbox.answer > 1:
                    self.send_response(inbox.answer)
                    self.send_header("Location", f"/{SECRET}/elsewhere")
                    self.end_headers()
                while inbox.answer == 1 and not inbox._over.wait(0.05):
                    self.wfile.write(b"H")
                    self.wfile.flush()
                if inbox.answer == 0:
                    inbox._over.wait()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/{SECRET}?token={SECRET}"

    def __enter__(self) -> Inbox:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()
