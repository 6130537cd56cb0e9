"""Files that hold what was sent, secrets included: for their owner's eyes alone."""

from __future__ import annotations

import os
import stat


def open_private(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file of this user's, made if it is not there; no other user can read it from now on.

    Args:
        flags: of :func:`os.open`; with ``O_TRUNC`` what is in it goes, once it is known to be this user's.

    Raises:
        OSError: it cannot be opened, is a link, or no file, or of another user, or has a second name.
    """
    number = os.open(
        path, (flags & ~os.O_TRUNC) | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600
    )
    try:
        status = os.fstat(number)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_nlink != 1:
            is_it = f"{stat.filemode(status.st_mode)} of user {status.st_uid}, with {status.st_nlink} names"
            raise PermissionError(f"{os.fspath(path)} is {is_it}, and no file of user {os.geteuid()} alone")
        os.fchmod(number, 0o600)
        if flags & os.O_TRUNC:
            os.ftruncate(number, 0)
    except BaseException:
        os.close(number)
        raise
    return number
