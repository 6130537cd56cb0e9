"""A real Flower of a fleet's app, as a process, and questions to it."""

from __future__ import annotations

import base64
import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from celery_poison.testing import wait_until
from celery_poison.testing.servers import free_ports
from tests import PATIENCE
from tests.apps.harness import ROOT, Fleet
from tests.harness import preloaded

#: Most of a Flower's start is its imports.
_start = preloaded.of_flowers()

ANN = "ann:pa55word"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: http.client.HTTPMessage
    body: bytes
    took: float

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class FlowerServer:
    """`celery poison flower` until it is closed; `options` are Flower's own."""

    def __init__(
        self,
        fleet: Fleet,
        *options: str,
        user: str = "",
        prefix: str = "",
        env: Mapping[str, str] | None = None,
        command: tuple[str, ...] = ("poison", "flower"),
        app: str = "tests.apps.fleet",
        fresh: bool = False,
    ) -> None:
        """Start it; ``fresh``: in an interpreter that has imported nothing."""
        (self.port,) = free_ports()
        self.prefix = f"/{prefix}" if prefix else ""
        self.user = user
        self.log = Path(fleet.directory) / f"flower{self.port}.log"
        more = [f"--url_prefix={prefix}"] if prefix else []
        more += [f"--basic_auth={user}"] if user else []
        arguments = ["-m", "celery", "-A", app, *command, f"--port={self.port}", "--address=127.0.0.1"]
        with self.log.open("ab") as log:
            self._process = (subprocess.Popen if fresh else _start)(
                [sys.executable, *arguments, *more, *options],
                cwd=ROOT,
                env={**os.environ, **fleet.environ(), **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{self.prefix}"

    def ask(self, method: str, path: str, body: str | bytes | None = None, **headers: str) -> Answer:
        """Ask as `user`, unless headers say otherwise; `Sec_Fetch_Site` is Sec-Fetch-Site."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.user and "Authorization" not in sent:
            sent["Authorization"] = f"Basic {base64.b64encode(self.user.encode()).decode()}"
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            began = time.perf_counter()
            connection.request(method, self.prefix + path, body, {k: v for k, v in sent.items() if v})
            answer = connection.getresponse()
            found = answer.read()
            return Answer(answer.status, answer.headers, found, time.perf_counter() - began)
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, **headers)

    def post(self, path: str, form: Any = (), **headers: str) -> Answer:
        sent = {"Content_Type": "application/x-www-form-urlencoded", **headers}
        return self.ask("POST", path, urlencode(form, doseq=True), **sent)

    def post_json(self, path: str, value: Any, **headers: str) -> Answer:
        return self.ask("POST", path, json.dumps(value), **{"X_Poison_Client": "tests", **headers})

    def wait_ready(self) -> FlowerServer:
        def answers() -> bool:
            assert self._process.poll() is None, self.log_text()
            try:
                return self.get("/healthcheck").status == 200
            except OSError:
                return False

        wait_until(answers, what=self.log_text)
        return self

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")

    def memory_mb(self) -> float:
        """Resident memory."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
