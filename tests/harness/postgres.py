"""A private PostgreSQL server: a cluster of its own, on a free port of the loopback address."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Self

from celery_poison.testing.servers import Running, free_ports, wait_until

#: PostgreSQL does not run as root: then it runs as this user, whom Debian's package makes.
USER = "postgres"


def find_binaries() -> Path | None:
    """Return the folder of the server's programs: Debian's, or on the PATH; None: there is none."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    found = [*debian, *(Path(each) for each in os.get_exec_path())]
    return next((folder for folder in found if (folder / "postgres").exists()), None)


class PostgresServer(Running):
    """One server, which does not wait for its disk.

    `url` is SQLAlchemy's, `django` the entry in Django's DATABASES.
    """

    def __init__(self) -> None:
        binaries = find_binaries()
        if binaries is None:
            raise FileNotFoundError("no PostgreSQL: apt-get install postgresql")
        self._binaries = binaries
        self._user = USER if os.geteuid() == 0 else None
        self.port = free_ports()[0]
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://{USER}@127.0.0.1:{self.port}/postgres"

    @property
    def django(self) -> dict[str, object]:
        place = {"HOST": "127.0.0.1", "PORT": str(self.port), "USER": USER, "NAME": "postgres"}
        return {"ENGINE": "django.db.backends.postgresql", **place}

    @property
    def directory(self) -> Path:
        if self._directory is None:
            self._directory = tempfile.TemporaryDirectory(prefix="poison-postgres-")
            if self._user:
                shutil.chown(self._directory.name, self._user)
        return Path(self._directory.name)

    def start(self) -> Self:
        """Start, on the same data after `kill()`, and wait until it takes connections."""
        data = self.directory / "data"
        if not data.exists():
            options = ["--auth=trust", f"--username={USER}", "--encoding=UTF8", "--locale=C"]
            self._run("initdb", "-D", str(data), *options)
        place = ["-p", str(self.port), "-k", str(self.directory)]
        command = [str(self._binaries / "postgres"), "-D", str(data), "-h", "127.0.0.1", "-F", *place]
        self._process = subprocess.Popen(
            command,
            user=self._user,
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        wait_until(self._answers, what="PostgreSQL takes connections")
        return self

    def stop(self) -> None:
        """Stop it and delete its data."""
        self._end(signal.SIGINT)
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None

    def kill(self) -> None:
        """SIGQUIT: it ends at once, as in a crash, and recovers from its log at the next start.

        SIGKILL would leave its other processes behind.
        """
        self._end(signal.SIGQUIT)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.wait(timeout=60)

    def _answers(self) -> bool:
        ready = ["-h", "127.0.0.1", "-p", str(self.port), "-q"]
        return subprocess.run([str(self._binaries / "pg_isready"), *ready]).returncode == 0

    def _run(self, name: str, *arguments: str) -> None:
        command = [str(self._binaries / name), *arguments]
        subprocess.run(command, user=self._user, cwd=self.directory, check=True, capture_output=True)
