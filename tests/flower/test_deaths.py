"""The chart of deaths: which days and tasks it shows, how large its parts are; names are no markup."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from celery_poison.flower import death_picture, incident_page
from tests.apps.harness import Fleet
from tests.desk.keeping import Keeper
from tests.flower.conftest import Serve
from tests.flower.served import ANN

TODAY = 20_418
NOW = TODAY * 86_400 + 12 * 3600.0
HOSTILE = '<script>alert("x")</script>'


def bars(picture: str) -> list[tuple[str, str]]:
    """Colour and words of each bar, as a browser reads the picture."""
    space = "{http://www.w3.org/2000/svg}"
    found = ElementTree.fromstring(picture).iter(f"{space}rect")
    return [(bar.attrib["class"].split()[1], bar.findtext(f"{space}title") or "") for bar in found]


def test_the_chart_stacks_the_deaths_of_each_day_by_task_and_gives_the_frequent_ones_a_colour() -> None:
    counted = {(TODAY - number, f"shop.t{number}"): 10 - number for number in range(7)}
    counted |= {
        (TODAY, ""): 2,
        (TODAY - 13, ""): 1,
        (TODAY - 14, "shop.old"): 99,
        (TODAY + 1, "shop.later"): 99,
    }
    drawn = death_picture.draw(counted, NOW)
    assert drawn is not None and drawn.total == sum(range(4, 11)) + 2 + 1
    named = [(f"task{number}", f"shop.t{number}", 10 - number) for number in range(5)]
    assert drawn.keys == [*named, ("others", "", 5 + 4 + 2 + 1)]
    wide, narrow = drawn.pictures
    assert sorted(bars(wide)) == sorted(bars(narrow))
    assert ("task0", "26 Nov: 10 × shop.t0") in bars(wide)
    assert ("others", "26 Nov: 2 × other tasks") in bars(wide)
    assert ("others", "21 Nov: 5 × other tasks") in bars(wide)
    assert "old" not in wide and "later" not in wide
    assert len(re.findall(r">\d+ Nov</text>", wide)) == 14 and len(re.findall(r"Nov</text>", narrow)) == 4


def test_the_bars_of_a_day_stand_on_each_other_and_none_is_higher_than_the_chart() -> None:
    drawn = death_picture.draw({(TODAY, "a"): 3_000_000, (TODAY, "b"): 1_000_000, (TODAY - 3, "a"): 1}, NOW)
    assert drawn is not None
    found = re.findall(
        r'<rect class="bar (\w+)" x="([\d.]+)" y="([\d.]+)" .*? height="([\d.]+)"', drawn.pictures[0]
    )
    (_, x, y, height), (_, x2, y2, height2) = [each for each in found if each[1] == max(e[1] for e in found)]
    assert x == x2 and abs(float(y2) + float(height2) - float(y)) < 0.2 and float(y2) >= 0
    assert abs(float(height) - 3 * float(height2)) < 0.5


def test_NEW_14_the_chart_has_as_many_days_as_there_were_deaths_and_five_at_least() -> None:
    first_day = death_picture.draw({(TODAY, "a"): 3}, NOW)
    second_week = death_picture.draw({(TODAY, "a"): 3, (TODAY - 8, "a"): 1}, NOW)
    assert first_day is not None and second_week is not None
    assert (first_day.days, second_week.days) == (5, 9)
    assert [len(re.findall(r"Nov</text>", each)) for each in first_day.pictures] == [5, 5]
    assert ("task0", "18 Nov: 1 × a") in bars(second_week.pictures[1])


def test_NEW_14_incidents_are_shown_in_the_shortest_span_that_holds_all() -> None:
    hours = {0: "1h", 5: "6h", 7: "24h", 30: "7d", 1000: "7d"}
    assert {back: incident_page.shortest([NOW, NOW - back * 3600], NOW) for back in hours} == hours
    assert incident_page.shortest([], NOW) == "24h"


def test_without_deaths_there_is_no_chart() -> None:
    assert death_picture.draw({}, NOW) is None
    assert death_picture.draw({(TODAY - 20, "a"): 5}, NOW) is None


def test_the_first_page_shows_deaths_as_they_were_recorded_and_a_tasks_name_is_no_markup(
    serve: Serve, fleet: Fleet, keeper: Keeper
) -> None:
    keeper.send_and_keep("fleet.kill_child")
    today = keeper.ledger.client.time()[0] // 86_400
    keeper.ledger.client.hset(keeper.ledger.keys.deaths_by_day, f"{today} {HOSTILE}", 7)
    flower = serve(user=ANN)
    page = flower.get("/poison").text
    assert "2 × fleet.kill_child" in page and "7 × &lt;script&gt;" in page and HOSTILE not in page
    assert "9 deaths by day and task" in page
    assert 'id="poison-deaths-title"' not in flower.get("/poison?filter=task%3Dfleet.*").text
    pictures = re.findall(r'<svg class="poison-picture.*?</svg>', page, re.DOTALL)
    assert [bool(bars(picture)) for picture in pictures] == [True, True]
