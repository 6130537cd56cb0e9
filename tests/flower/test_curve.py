"""The memory of what died is drawn as a line, with its limit where that is near (NEW-19)."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from celery_poison.causes import Evidence
from celery_poison.extensions.black_box.evidence import GrowthEvidence
from celery_poison.extensions.black_box.flower import memory_curve

_CURVE = GrowthEvidence(grew_curve=(61_440, 102_400, 375_808), grew_for_s=4.2)
_GREW = Evidence(limit_kb=512_000).having(_CURVE)


def test_NEW_19_the_curve_says_in_words_what_it_draws() -> None:
    picture = ElementTree.fromstring(memory_curve(_GREW))
    assert picture.get("aria-label") == "Memory: 60 to 367 MiB in 4.2 s"
    line = next(each for each in picture if each.get("class") == "memory")
    places = [tuple(map(float, pair.split(","))) for pair in (line.get("points") or "").split()]
    assert [x for x, _ in places] == [0, 300, 600]
    assert places[0][1] > places[1][1] > places[2][1] > 0
    limit = next(each for each in picture if each.get("class") == "limit")
    assert float(limit.get("y1") or 0) < places[2][1], "above all of the line"


@pytest.mark.parametrize("limit_kb", [None, 0, 1 << 30, 1024])
def test_NEW_19_a_limit_that_is_unknown_far_or_not_its_own_is_not_drawn(limit_kb: int | None) -> None:
    seen = Evidence(limit_kb=limit_kb).having(_CURVE)
    assert 'class="limit"' not in memory_curve(seen)


@pytest.mark.parametrize("curve", [(), (1, 2), (0, 0, 0)])
def test_NEW_19_where_nothing_is_known_nothing_is_drawn(curve: tuple[int, ...]) -> None:
    assert memory_curve(Evidence().having(GrowthEvidence(grew_curve=curve, grew_for_s=1.0))) == ""
