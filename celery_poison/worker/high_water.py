"""The most memory that one run has needed, and its process so far: ``run_memory_kb`` and ``memory_kb``.

Linux sets a high-water mark back, by ``/proc/self/clear_refs``, in 4 µs. Elsewhere the mark of a process only
rises, and of a run that did not raise it nothing is known.
"""

from __future__ import annotations

import os
import resource
import sys

_CLEAR = "/proc/self/clear_refs"
#: Elsewhere than on macOS it is in KiB already.
_UNIT = 1024 if sys.platform == "darwin" else 1


class HighWater:
    """The marks of this process; one run after the other, since those of threads share their memory."""

    def __init__(self) -> None:
        self._most, self._can_be_cleared = 0, True

    def begin(self) -> int:
        """Return the mark above which a peak is that of the run which begins now: 0 where any is, in KiB."""
        before = self._most or self.peak_kb()  # imports may have needed more than what is left of them
        if self._can_be_cleared:
            try:
                # By its name: what a task closes, and opens under the same number, would be written to.
                number = os.open(_CLEAR, os.O_WRONLY)
                try:
                    os.write(number, b"5")
                finally:
                    os.close(number)
                return 0
            except OSError:
                self._can_be_cleared = False
        return max(before, self.peak_kb())

    def peak_kb(self) -> int:
        """Return the most resident memory that this process has had so far, in KiB."""
        return self.peaks_kb(None)[0]

    def peaks_kb(self, mark: int | None) -> tuple[int, int | None]:
        """Return the peak of this process, and that of a run; None where the latter is not known.

        Args:
            mark: what :meth:`begin` returned; None: it did not run alone.
        """
        now = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // _UNIT
        if now > self._most:
            self._most = now
        return self._most, now if mark is not None and now > mark else None


high_water = HighWater()
