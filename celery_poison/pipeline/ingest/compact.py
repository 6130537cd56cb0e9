"""Many small batches become one, so that reading stays quick.

The one is renamed into its place first, and counts from then on in place of the others, which are deleted
after it: a reader of ours never sees an entry twice. One that reads all Parquet files without looking for
``_SUCCESS`` may, for the moment between the two.
"""

from __future__ import annotations

from collections.abc import Sequence

from celery_poison.pipeline.batches import Manifest, find, together
from celery_poison.pipeline.ingest import lock
from celery_poison.pipeline.ingest.writing import count_versions, publish, write_rows
from celery_poison.pipeline.lake import Lake

#: So many neighbours of one size are put together; what has a million rows stays as it is.
WIDTH, LARGE = 16, 1_000_000


def compact(lake: Lake, owner: str) -> list[str]:
    """Put small batches together, and clear away what earlier runs left behind.

    Args:
        owner: of the lake's lock; LockLost is raised when it is another's by now.

    Returns:
        the names of the new batches.
    """
    found = find(lake.files, lake.journal_directory)
    for name in found.covered:
        lake.files.delete(f"{lake.journal_directory}/{name}")
    made = []
    for run in runs(found.counting):
        one = _merge(lake, run, owner)
        if one:
            made.append(one.name)
    return made


def runs(manifests: Sequence[Manifest]) -> list[list[Manifest]]:
    """Return neighbours worth putting together: at least WIDTH of them of about one size, or smaller."""
    for most in (LARGE // WIDTH**3, LARGE // WIDTH**2, LARGE // WIDTH, LARGE - 1):
        found: list[list[Manifest]] = [[]]
        for manifest in manifests:
            if manifest.rows <= most:
                found[-1].append(manifest)
            elif found[-1]:
                found.append([])
        worth = [run for run in found if len(run) >= WIDTH]
        if worth:
            return worth
    return []


def _merge(lake: Lake, run: Sequence[Manifest], owner: str) -> Manifest | None:
    one = together(run)
    place = f"{lake.staging}/{owner}/{one.name}"
    lake.files.delete(place)
    holding = [manifest for manifest in run if manifest.rows]
    if holding:
        try:
            write_rows(lake.stored(holding, strict=True).coalesce(1 + one.rows // LARGE), place)
        except Exception:  # a corrupt file: the batches stay as they are, and reading tells of it
            lake.files.delete(place)
            return None
        if count_versions(lake, place) != one.versions:
            lake.files.delete(place)
            return None
    lock.check(lake.files, lake.lock_path, owner)
    publish(lake, place, one)
    for manifest in run:
        lake.files.delete(f"{lake.journal_directory}/{manifest.name}")
    return one
