"""docs/demo.svg, and the script that draws it from a run of the demo."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as tree

from tests.docs.pages import DOCS

sys.path.insert(0, str(DOCS / "site"))

import demo_svg
from demo_svg import HOLD, SPEED, Line

RUN = [
    Line(0.5, "3 healthy tasks with 1 poison message among them; 2 workers of 2 processes"),
    Line(1.0, "   1 s  healthy 0 of 3 done, quarantine 0 of 1, died: 0 workers, 0 pool processes"),
    Line(9.0, "   9 s  segfault: in quarantine: killed its process by SIGSEGV <here> & there"),
    Line(10.0, "  10 s  healthy 3 of 3 done, quarantine 1 of 1, died: 0 workers, 2 pool processes"),
    Line(12.0, "  ✓ every healthy task was done"),
]


def _seen_at(picture: str, text: str) -> float:
    """Return the second at which a text is seen first."""
    name = re.search(rf'class="\w+ (\w+)"[^>]*>{re.escape(text)}', picture)
    length = re.search(r"animation:\w+ ([\d.]+)s", picture)
    assert name and length, text
    begins = re.search(f"@keyframes {name[1]}" + r"{(?:0%{opacity:0})?([\d.]+)%{opacity:1}", picture)
    assert begins, name[1]
    return float(begins[1]) / 100 * float(length[1])


def test_each_line_is_seen_when_it_was_printed_and_the_last_picture_stands() -> None:
    picture = demo_svg.draw(RUN)
    assert _seen_at(picture, "$ celery-poison demo") == 0
    assert abs(_seen_at(picture, "   9 s  segfault") - 9 / SPEED) < 0.1
    assert abs(_seen_at(picture, "10 s  healthy 3 of 3") - 10 / SPEED) < 0.1
    length = re.search(r"animation:\w+ ([\d.]+)s", picture)
    assert length and abs(float(length[1]) - (12 / SPEED + HOLD)) < 0.1


def test_the_picture_is_xml_loads_nothing_and_stands_still_for_readers_who_ask_for_that() -> None:
    for picture in (demo_svg.draw(RUN), demo_svg.PICTURE.read_text(encoding="utf-8")):
        tree.fromstring(picture)
        assert "href" not in picture and "<script" not in picture and "url(" not in picture
        assert picture.count("prefers-reduced-motion") == picture.count("@keyframes")


def test_the_picture_in_the_repository_is_of_a_run_that_kept_every_promise() -> None:
    picture = demo_svg.PICTURE.read_text(encoding="utf-8")
    assert "Every promise held" in picture and picture.count("in quarantine: ") == 9
