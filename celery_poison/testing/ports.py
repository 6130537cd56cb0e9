"""A port nobody listens on."""

from __future__ import annotations

import socket


def free_ports(count: int = 1) -> list[int]:
    """`count` different free TCP ports of the loopback address.

    All are held open until the last is found, so that they differ. Somebody else can still take one
    before the server does: whoever starts a server checks that the one that answers is its own.
    """
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(count)]
    try:
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [int(sock.getsockname()[1]) for sock in sockets]
    finally:
        for sock in sockets:
            sock.close()
