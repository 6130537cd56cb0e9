"""How much memory this process has needed."""

from __future__ import annotations

import resource
import sys

#: Elsewhere than on macOS it is told in KiB already.
_UNIT = 1024 if sys.platform == "darwin" else 1


def peak_memory_kb() -> int:
    """Return the most resident memory that this process has had so far, in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // _UNIT
