"""Who acts, where nobody says so."""

from __future__ import annotations

import getpass
import os
import socket


def default_actor() -> str:
    """Return ``login@host`` of this process."""
    try:
        login = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container's user need not have a name
        login = str(os.getuid())
    return f"{login}@{socket.gethostname()}"
