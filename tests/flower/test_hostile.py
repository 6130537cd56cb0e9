"""Whatever was stored, and however much of it: escaped, and in under a second a page."""

from __future__ import annotations

import html
import json
import math
import re
import statistics
import sys
from collections.abc import Callable, Iterator
from urllib.parse import quote, urlencode

import pytest

from celery_poison.desk.finder import PAGE_LOOKS_AT
from celery_poison.ledger import Keys
from celery_poison.testing import RedisServer, wait_until
from tests.apps.harness import Fleet
from tests.desk.keeping import Keeper
from tests.flower.conftest import Serve
from tests.flower.served import ANN, Answer, FlowerServer
from tests.ledger.grouping import group_anew

SCRIPT = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
TURNED = "right\u202eleft"
BROKEN = b"\xff\xfe{{ 1 + 1 }} <b>\xc3"

#: Seconds for a page beside all other tests: only what grows out of hand is a mistake there.
BUSY = 10
TOKEN = {"Cookie": "_xsrf=abcdef0123456789", "X_XSRFToken": "abcdef0123456789"}
#: Copies one message many times, inside Redis: 997 tasks, one in 100 with another cause.
COPY = """
local fields = redis.call('HGETALL', KEYS[1])
for i = tonumber(ARGV[1]), tonumber(ARGV[1]) + 999 do
  local mid = string.format('%032x', i)
  local key = ARGV[2] .. mid
  redis.call('HSET', key, unpack(fields))
  redis.call('HSET', key, 'mid', mid, 'id', 'id-' .. i, 'task', 'shop.task' .. (i % 997),
    'cause', i % 100 == 0 and 'oom' or 'signal:9', 'quarantined_at', ARGV[3] - i)
  redis.call('ZADD', KEYS[2], ARGV[3] - i, mid)
end
"""


def harmless(answer: Answer) -> None:
    for forbidden in ("<script>alert", "<img src=x", "onerror=alert(2)>\n", "\u202e", "<b>"):
        assert forbidden not in answer.text, forbidden
    assert answer.took < BUSY, answer.took


def test_what_was_stored_is_shown_and_does_nothing(serve: Serve, fleet: Fleet, keeper: Keeper) -> None:
    ten_megabytes = (SCRIPT + TURNED) * (10_000_000 // len(SCRIPT + TURNED))
    mid = keeper.send_and_keep("fleet.kill_child", ten_megabytes, argsrepr=ten_megabytes, kwargsrepr=SCRIPT)
    keys: Keys = keeper.ledger.keys
    stored = {"task": SCRIPT, "id": SCRIPT + TURNED, "worker": SCRIPT, "queue": TURNED, "reason": BROKEN}
    stack = {"signal": 11, "stack": [SCRIPT + TURNED, "<b>"]}
    stored |= {"arguments": SCRIPT + TURNED, "cause": "signal:<b>", "evidence": json.dumps(stack)}
    stored["failure"] = json.dumps([SCRIPT, TURNED, SCRIPT + "\n<b>", [[SCRIPT, TURNED, SCRIPT]]])
    keeper.ledger.client.hset(keys.message(mid), mapping=stored)
    group_anew(keeper.ledger)
    journalled = {"id": SCRIPT + TURNED, "task": SCRIPT, "note": BROKEN, "actor": SCRIPT, "mid": mid}
    newest = keeper.ledger.client.xrevrange(keys.journal, count=1)[0][1]
    keeper.ledger.client.xadd(keys.journal, {**newest, **journalled, "event": "released"})
    keeper.ledger.client.xadd(keys.journal, {**newest, **journalled, "evidence": f'{{"{TURNED}": "<b>"}}'})
    evidence = json.dumps({"noticed": "gone", "asked": SCRIPT + TURNED, "asked_ms": 1})
    died = {"incident": "i1", "worker": SCRIPT, "cause": "worker_lost", "evidence": evidence}
    keeper.ledger.client.hset(keys.incident("i1"), mapping=died)
    keeper.ledger.client.zadd(keys.incidents, {"i1": 1})
    crashed = {"event": "crashed", "incident": "i1", "runtime_ms": "9" * 40, "pid": SCRIPT}
    keeper.ledger.client.xadd(keys.journal, {**newest, **journalled, **crashed})
    flower = serve(user=ANN)
    pages = [
        "/poison",
        f"/poison?{urlencode({'filter': 'task=' + repr(SCRIPT)})}",
        f"/poison?{urlencode({'state': SCRIPT, 'offset': SCRIPT, 'job': SCRIPT})}",
        f"/poison?{urlencode({'filter': SCRIPT})}",
        f"/poison?{urlencode({'filter': TURNED + BROKEN.decode('utf-8', 'replace')})}",
        f"/poison?{urlencode({'filter': 'onerror'})}",
        f"/poison/message/{mid}",
        f"/poison/task/{quote(SCRIPT, safe='')}",
        f"/poison/message/{quote(SCRIPT + TURNED)}",
        f"/poison/incidents?span={quote(SCRIPT)}",
        f"/poison/incident/{quote(SCRIPT)}",
        "/poison/incident/i1",
        f"/poison/job/{quote(SCRIPT)}",
    ]
    for path in pages:
        harmless(flower.get(path))
    listed = flower.get("/poison").text
    assert "&lt;script&gt;alert(1)" in listed
    (of_its_queue,) = re.findall(r'<td class="poison-queue"><a href="([^"]*)"', listed)
    assert f'id="m-{mid}"' in flower.get(of_its_queue).text, "a click finds it again"
    assert "<h3>Earlier attempts, oldest first</h3>" in flower.get(f"/poison/message/{mid}").text
    assert "characters)" in flower.get(f"/poison/message/{mid}").text
    drawn = flower.get("/poison/incident/i1").text
    svg = drawn[drawn.index('<svg class="poison-picture') : drawn.index("</figure>")]
    assert "&lt;script&gt;alert(1)" in svg and "The journal has lost a part of this death" in drawn
    assert "had been asked to leave by &lt;script&gt;" in flower.get("/poison/incidents").text
    for chosen in ({"ids": mid, "filter": SCRIPT}, {"everything": "1", "filter": "onerror"}):
        preview = flower.post("/poison/preview/release", chosen, **TOKEN)
        harmless(preview)
        assert "Release 1 message?" in preview.text
    given_up = flower.post("/poison/act/discard", {"ids": mid, "note": SCRIPT + TURNED}, **TOKEN)
    assert given_up.status == 303
    for path in ("/poison?state=FAIL", f"/poison/message/{mid}", given_up.headers["Location"]):
        harmless(flower.get(path))
    assert "by ann (flower): &lt;script&gt;" in flower.get(f"/poison/message/{mid}").text
    told = flower.get(f"/api/poison/message/{mid}").json
    assert (told["task"], told["reason"]) == (SCRIPT, BROKEN.decode("utf-8", "replace"))


@pytest.mark.parametrize("typed", ["task=" + "[" * 60_000, "a " * 5_000, "task=a " * 100])
def test_a_filter_without_an_end_is_refused_at_once(serve: Serve, keeper: Keeper, typed: str) -> None:
    keeper.send_and_keep("fleet.kill_child")
    flower = serve(user=ANN)
    wait_until(lambda: flower.get("/poison").status == 200)
    path = f"filter={quote(typed, safe='[=')}"
    page = flower.get(f"/poison?{path}")
    assert page.status in (200, 400) and "are read at most" in page.text and page.took < BUSY
    answer = flower.get(f"/api/poison/messages?{path}")
    assert answer.status == 400 and "are read at most" in answer.text and answer.took < BUSY
    assert flower.get("/poison").status == 200


@pytest.mark.parametrize("many", [6000, pytest.param(100_000, marks=pytest.mark.matrix)])
def test_a_hundred_thousand_entries_are_paged_filtered_and_grouped_in_under_a_second_a_page(
    new_fleet: Callable[..., Fleet], serve: Serve, new_server: Callable[..., RedisServer], many: int
) -> None:
    fleet = new_fleet(new_server().url(0))
    keeper = Keeper(fleet.app)
    keeper.sign()
    mid = keeper.send_and_keep("fleet.kill_child")
    keys, client = keeper.ledger.keys, keeper.ledger.client
    now = keeper.ledger.client.time()[0] * 1000
    for start in range(1, many, 1000):
        client.eval(COPY, 2, keys.message(mid), keys.quarantine, start, keys.message(""), now)
    group_anew(keeper.ledger)
    assert sum(group.count for group in fleet.quarantine.groups()) == many + 1
    flower = serve(user=ANN, of=fleet)
    limit = 1 if many > 6000 else BUSY
    first = flower.get("/poison")
    assert (first.status, first.took < limit) == (200, True), first.took
    pages = {
        "list": "/poison",
        "deep": f"/poison?offset={many - 100}",
        "oldest": "/poison?order=oldest",
        "few of them": "/poison?filter=cause%3Doom+task%3Dshop.task5*",
        "none of them": "/poison?filter=worker%3Dnobody",
        "old ones": "/poison?filter=age%3E1h",
        "young ones": "/poison?filter=age%3C1h+task%3Dshop.task5*",
        "words": "/poison?filter=task5",
        "words of the oldest": f"/poison?filter=id-{many}",
        "no such word": "/poison?filter=nowhere",
        "message": f"/poison/message/{4711:032x}",
        "task": "/poison/task/id-4711",
        "groups": "/api/poison/groups",
        "status": "/api/poison/status",
    }
    took = {name: statistics.median(ask(flower, path) for _ in range(3)) for name, path in pages.items()}
    sys.stdout.write(
        f"first page {first.took * 1000:.0f} ms, then"
        f" {', '.join(f'{name} {seconds * 1000:.0f}' for name, seconds in took.items())} ms;"
        f" {flower.memory_mb():.0f} MB\n"
    )
    # What is not in the index of groups is looked for in each message: of a page, in so many of them.
    assert max(seconds for name, seconds in took.items() if name != "task") < limit, took
    assert max(took.values()) < BUSY, took
    assert f"{many + 1:,}" in flower.get("/poison").text
    looked = [*searched(flower, pages["words of the oldest"])]
    assert len(looked) == math.ceil((many + 1) / PAGE_LOOKS_AT) > 1
    assert all(f"0 found, {PAGE_LOOKS_AT:,} looked through, as far as" in text for text in looked[:-1])
    assert "1 found," in looked[-1] and f'id="m-{many:032x}"' in looked[-1]
    everything = {"everything": "1", "filter": f"id-{many}"}
    preview = flower.post("/poison/preview/discard", everything, **TOKEN)
    assert "at least 0 messages?" in preview.text and "the newest 5,000 were looked through" in preview.text
    (until,) = re.findall(r'name="until" value="([^"]+)"', preview.text)
    assert flower.post("/poison/act/discard", {**everything, "until": until}, **TOKEN).status == 303
    wait_until(lambda: [each.id for each in fleet.quarantine.list(state="FAIL")] == [f"id-{many}"])
    keeper.close()


def searched(flower: FlowerServer, path: str) -> Iterator[str]:
    """Yield the page, and those that go on looking."""
    while path:
        answer = flower.get(path)
        assert answer.status == 200, answer
        yield answer.text
        further = re.search(r'rel="next" href="([^"]+)">Go on looking', answer.text)
        path = html.unescape(further[1]) if further else ""


def ask(flower: FlowerServer, path: str) -> float:
    """Return how long the answer took, in seconds."""
    answer = flower.get(path)
    assert answer.status in (200, 302), (path, answer)
    return answer.took
