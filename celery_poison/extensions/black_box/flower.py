"""The memory of what died as a line, below the limit that it met, as an SVG that needs no script."""

from __future__ import annotations

from celery_poison.causes import Evidence
from celery_poison.extensions.black_box.evidence import GrowthEvidence
from celery_poison.flower.extension_parts import FlowerPart

_WIDTH, _HEIGHT, _TOP = 600, 128, 26
#: A limit so many times as high as the memory is not drawn: the line would lie at the bottom.
_FAR = 4


def memory_curve(evidence: Evidence) -> str:
    """Return the picture; empty where no memory grew, or only a moment of it is known."""
    grew = evidence.of(GrowthEvidence)
    points, seconds = grew.grew_curve, grew.grew_for_s
    if len(points) < 3 or not seconds or not (peak := max(points)):
        return ""
    limit = evidence.limit_kb or 0
    limit = limit if peak / 2 <= limit <= _FAR * peak else 0
    highest = max(peak, limit)

    def y(kb: int) -> float:
        return _TOP + (_HEIGHT - _TOP - 4) * (1 - kb / highest)

    line = " ".join(f"{_WIDTH * n / (len(points) - 1):.0f},{y(kb):.1f}" for n, kb in enumerate(points))
    words = f"{points[0] / 1024:,.0f} to {points[-1] / 1024:,.0f} MiB in {seconds:.1f} s"
    told = f'<text class="axis" x="0" y="17">{words}</text><polyline class="memory" points="{line}"/>'
    if limit:
        told += (
            f'<line class="limit" x1="0" x2="{_WIDTH}" y1="{y(limit):.1f}" y2="{y(limit):.1f}"/>'
            f'<text class="axis" x="{_WIDTH}" y="17" text-anchor="end">limit {limit / 1024:,.0f} MiB</text>'
        )
    return (
        f'<svg class="poison-picture" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"'
        f' aria-label="Memory: {words}" xmlns="http://www.w3.org/2000/svg">{told}</svg>'
    )


PART = FlowerPart(pictures={"Memory until its death": memory_curve})
