"""A private Redis that speaks TLS, and nothing else."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import trustme

from celery_poison.testing import RedisServer, find_redis_binary
from tests.harness.servers import SentinelServer


def speaks_tls(binary: str | None = None) -> bool:
    """Whether there is a Redis server that was built with TLS; or whether this one was."""
    binary = binary or find_redis_binary()
    if binary is None:
        return False
    # It ends at once: without a certificate, without such an option (Redis), or without support (Valkey).
    told = subprocess.run(
        [binary, "--tls-port", "1", "--port", "0"], capture_output=True, text=True, check=False
    )
    return not any(each in told.stdout + told.stderr for each in ("Bad directive", "finding TLS support"))


class Authority:
    """A certificate authority that nobody else knows.

    Args:
        directory: where its files are written.

    Attributes:
        ca: the file with its own certificate.
        certificate, key: the files of a server of the loopback address.
        options: how Redis is told of them.
    """

    def __init__(self, directory: Path) -> None:
        authority = trustme.CA()
        issued = authority.issue_cert("127.0.0.1", "localhost")
        self.ca, self.certificate, self.key = (directory / f"{name}.pem" for name in ("ca", "server", "key"))
        self.options = {
            "tls-ca-cert-file": self.ca,
            "tls-cert-file": self.certificate,
            "tls-key-file": self.key,
        }
        authority.cert_pem.write_to_path(str(self.ca))
        issued.cert_chain_pems[0].write_to_path(str(self.certificate))
        issued.private_key_pem.write_to_path(str(self.key))


class TlsRedisServer(RedisServer):
    """As `RedisServer`, with a certificate of ``authority``; `url` says how to verify it."""

    def __init__(self, authority: Authority, options: Mapping[str, object] | None = None) -> None:
        super().__init__(options=options)
        self.authority = authority
        self.options |= {"port": 0, "tls-port": self.port, "tls-auth-clients": "no", **authority.options}

    def bare_url(self, db: int = 0) -> str:
        """The URL without a word on how to verify the certificate."""
        return super().url(db).replace("redis://", "rediss://")

    def url(self, db: int = 0) -> str:
        return f"{self.bare_url(db)}?ssl_cert_reqs=required&ssl_ca_certs={self.authority.ca}"


class SentinelOfTls(SentinelServer):
    """A Sentinel that is asked without TLS, of a master with it."""

    def __init__(self, master: TlsRedisServer) -> None:
        super().__init__(master)
        self._options = {"tls-replication": "yes", **master.authority.options}

    def _command(self) -> list[str]:
        command = super()._command()
        with Path(command[1]).open("a") as file:
            file.writelines(f'{name} "{value}"\n' for name, value in self._options.items())
        return command
