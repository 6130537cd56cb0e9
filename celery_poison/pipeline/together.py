"""Several things at a time, so that one computes while another is being planned or writes its last file."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def together(*works: Callable[[], Any]) -> list[Any]:
    """Do all of them in threads; return what they returned, in their order.

    Raises:
        Exception: that of the first of ``works`` that failed, after all have ended.
    """
    with ThreadPoolExecutor(len(works), thread_name_prefix="pipeline") as pool:
        begun = [pool.submit(work) for work in works]
    return [each.result() for each in begun]
