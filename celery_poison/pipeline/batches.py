"""The directories of the lake, one for each batch: ``journal/batch=N/date=YYYY-MM-DD/*.parquet``.

A batch counts when it holds ``_SUCCESS``, whose text is its manifest: which entries it was to hold, how many
it holds, and how many were gone before they could be read. Several batches that were put together are
``batch=N-M``; what such a one covers does not count any more beside it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from celery_poison.pipeline.files import Files
from celery_poison.pipeline.schema import UNKNOWN

MARK = "_SUCCESS"
#: In the root of a lake that no ingest made: says in words what it is.
NO_JOURNAL = "_no_journal"
_NAME = re.compile(r"batch=(\d+)(?:-(\d+))?")


@dataclass(frozen=True)
class Gap:
    """Entries that were gone before they could be read.

    Attributes:
        after, upto: ids between which they had been.
        missing: how many; None where Redis cannot tell.
        why: in words.
    """

    after: str
    upto: str
    missing: int | None
    why: str


@dataclass(frozen=True)
class Manifest:
    """What ``_SUCCESS`` says.

    Attributes:
        first, last: the numbers of the batches that are in it.
        after, upto: ids; it holds the entries of ``(after, upto]``.
        rows: entries in it.
        versions: schema version -> entries; ``none`` for entries without one.
        base: entries ever added to the stream at the newest place before its end where that was known, or -1.
        since: rows from there up to its end.
        gaps: what was found missing.
    """

    first: int
    last: int
    after: str
    upto: str
    rows: int
    versions: dict[str, int]
    base: int = UNKNOWN
    since: int = 0
    gaps: tuple[Gap, ...] = ()

    @property
    def name(self) -> str:
        return f"batch={self.first}" if self.first == self.last else f"batch={self.first}-{self.last}"

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> Manifest:
        """Raises ValueError, TypeError or KeyError when the text is no manifest."""
        told: dict[str, Any] = json.loads(text)
        return cls(**{**told, "gaps": tuple(Gap(**gap) for gap in told["gaps"])})


@dataclass(frozen=True)
class LeftOut:
    """Something in the lake that was not read."""

    where: str
    why: str
    rows: int | None = None


@dataclass
class Batches:
    """What counts, in the order of the journal, and what does not."""

    counting: list[Manifest] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    covered: list[str] = field(default_factory=list)

    @property
    def newest(self) -> Manifest | None:
        return self.counting[-1] if self.counting else None


def find(files: Files, journal: str) -> Batches:
    """Return the batches below the directory ``journal``."""
    found = Batches()
    manifests: list[Manifest] = []
    for name in files.names(journal):
        if name.startswith(("_", ".")):
            continue
        manifest = _manifest(files, journal, name, found.left_out)
        if manifest:
            manifests.append(manifest)
    reached = -1
    for manifest in sorted(manifests, key=lambda m: (m.first, -m.last)):
        if manifest.last <= reached:
            found.covered.append(manifest.name)
        elif manifest.first <= reached:
            found.left_out.append(LeftOut(manifest.name, "overlaps another batch", manifest.rows))
        else:
            found.counting.append(manifest)
            reached = manifest.last
    return found


def _manifest(files: Files, journal: str, name: str, left_out: list[LeftOut]) -> Manifest | None:
    if not _NAME.fullmatch(name):
        left_out.append(LeftOut(name, "no batch of the ingest"))
        return None
    text = files.read(f"{journal}/{name}/{MARK}")
    if text is None:
        left_out.append(LeftOut(name, f"not finished: it has no {MARK}"))
        return None
    try:
        manifest = Manifest.of(text)
    except (ValueError, TypeError, KeyError):
        left_out.append(LeftOut(name, f"its {MARK} is not readable"))
        return None
    if manifest.name != name:
        left_out.append(LeftOut(name, f"a copy of {manifest.name}", manifest.rows))
        return None
    return manifest


def together(manifests: Iterable[Manifest]) -> Manifest:
    """Return the manifest of neighbouring batches as one."""
    several = list(manifests)
    versions: dict[str, int] = {}
    for manifest in several:
        for version, count in manifest.versions.items():
            versions[version] = versions.get(version, 0) + count
    return Manifest(
        first=several[0].first,
        last=several[-1].last,
        after=several[0].after,
        upto=several[-1].upto,
        rows=sum(manifest.rows for manifest in several),
        versions=versions,
        base=several[-1].base,
        since=several[-1].since,
        gaps=tuple(gap for manifest in several for gap in manifest.gaps),
    )
