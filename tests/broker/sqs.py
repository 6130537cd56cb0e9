"""An SQS of one's own."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from typing import Any

from celery_poison.testing.servers import Server, free_ports

#: Transport options for it.
OPTIONS: dict[str, Any] = {
    "region": "us-east-1",
    "is_secure": False,
    "visibility_timeout": 5,
    "polling_interval": 0.3,
    "wait_time_seconds": 1,
}
#: What must be installed: an extra of its own, since moto's server brings much.
NEEDED = ("moto.server", "boto3", "pycurl")


class SqsServer(Server):
    """moto's server, which plays SQS and keeps everything in memory."""

    title = "SQS"

    def __init__(self) -> None:
        super().__init__()
        (self.port,) = free_ports()

    @property
    def url(self) -> str:
        return f"sqs://testing:testing@127.0.0.1:{self.port}//"

    def _launch(self) -> subprocess.Popen[bytes]:
        return self._spawn(sys.executable, "-m", "moto.server", "-p", str(self.port))

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/moto-api/", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False
