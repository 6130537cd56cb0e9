"""What a list and a message tell at a glance."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

import pytest

from celery_poison.flower import incident_page
from celery_poison.flower.choosing import Listing
from celery_poison.headers import mid_of
from celery_poison.ledger.fleet import Silence
from celery_poison.model import IN_CELL, Guilt, Start
from celery_poison.rules.failures import KeptFailure
from celery_poison.testing import wait_until
from tests.apps.harness import Fleet
from tests.cli.conftest import Console
from tests.desk.keeping import Keeper
from tests.flower.conftest import Serve
from tests.flower.served import ANN, FlowerServer

TOKEN = {"Cookie": "_xsrf=0123456789abcdef", "X_XSRFToken": "0123456789abcdef"}
STACK = [
    "string_at (/usr/lib/python3.11/ctypes/__init__.py:517)",
    "decode (/srv/shop/imaging.py:4)",
    "trace_task (/opt/venv/lib/python3.11/site-packages/celery/app/trace.py:564)",
]


def started(serve: Serve, *mids: str, **options: Any) -> FlowerServer:
    """A Flower that has read so much that it shows these messages."""
    flower = serve(user=ANN, **options)
    wait_until(lambda: all(f'"m-{mid}"' in flower.get("/poison").text for mid in mids), what="all is read")
    return flower


def rows(flower: FlowerServer, **query: str) -> list[str]:
    """The mids of a list, as it is shown."""
    page = flower.get(f"/poison?{urlencode(query)}").text
    return re.findall(r'<tr id="m-([0-9a-f-]+)"', page)


def cells(flower: FlowerServer, path: str) -> str:
    """The text of the rows."""
    _, _, shown = flower.get(path).text.partition('id="poison-rows"')
    shown, _, _ = shown.partition("</table>")
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", shown)).split())


def test_a_message_is_listed_with_its_arguments_and_the_name_of_its_signal(
    serve: Serve, fleet: Fleet, keeper: Keeper
) -> None:
    mid = keeper.send_and_keep("fleet.kill_child", "invoice-4711", cause="signal:11")
    flower = started(serve, mid)
    shown = cells(flower, "/poison")
    assert '"invoice-4711"' in shown and "SIGSEGV" in shown and "signal:11" not in shown


@pytest.mark.parametrize(
    ("hidden_by", "sent"),
    [
        ("its producer", {"argsrepr": "on file", "kwargsrepr": ""}),
        ("poison_redact", {"args": ({"card_token": "card-5500"},)}),
        pytest.param("being pickled", {"serializer": "pickle"}, marks=pytest.mark.matrix),
    ],
)
def test_arguments_that_are_hidden_are_so_in_the_list_on_the_page_and_from_a_search(
    serve: Serve, fleet: Fleet, keeper: Keeper, hidden_by: str, sent: dict[str, Any]
) -> None:
    args = sent.pop("args", ("card-5500",))
    mid = keeper.send_and_keep("fleet.kill_child", *args, **sent)
    flower = started(serve, mid)
    for path in ("/poison", f"/poison/message/{mid}"):
        assert "card-5500" not in flower.get(path).text
    assert rows(flower, filter="card-5500") == []
    shown = {"its producer": "on file", "poison_redact": '{"card_token": "(hidden)"}', "being pickled": ""}[
        hidden_by
    ]
    assert shown in cells(flower, "/poison")


def test_a_click_on_a_task_or_a_cause_shows_only_those_of_the_same_tab(
    serve: Serve, fleet: Fleet, keeper: Keeper
) -> None:
    killed, segfaulted, given_up = (
        keeper.send_and_keep("fleet.kill_child"),
        keeper.send_and_keep("fleet.segfault", cause="signal:11"),
        keeper.send_and_keep("fleet.segfault", cause="signal:11"),
    )
    fleet.quarantine.discard([given_up], actor="ann", note="a test")
    flower = started(serve, killed, segfaulted)
    for state, clicked in (("NDLV", segfaulted), ("FAIL", given_up)):
        page = flower.get(f"/poison?state={state}").text
        for query in (Listing.of(state, task="fleet.segfault"), Listing.of(state, cause="signal:11")):
            assert f"?{html.escape(query.query)}" in page
            assert rows(flower, state=state, filter=query.text) == [clicked]
    assert rows(flower) == [segfaulted, killed]


def test_a_search_finds_words_in_arguments_tasks_causes_and_ids(
    serve: Serve, fleet: Fleet, keeper: Keeper
) -> None:
    one = keeper.send_and_keep("fleet.kill_child", "invoice-4711")
    two = keeper.send_and_keep("fleet.segfault", "invoice-4712", cause="signal:11")
    flower = started(serve, one, two)
    found: dict[str, list[str]] = {
        "invoice": [two, one],
        "4711": [one],
        "SIGSEGV": [two],
        "sigsegv 4711": [],
        "invoice cause=sigkill": [one],
        fleet.quarantine.get(two).id[3:13]: [two],
        "'an unfinished quotation": [],
    }
    assert {text: rows(flower, filter=text) for text in found} == found
    everything = {"everything": "1", "filter": "4711"}
    assert "Discard 1 message?" in flower.post("/poison/preview/discard", everything, **TOKEN).text


def test_a_program_cannot_act_on_words_that_it_took_for_a_filter(
    serve: Serve, fleet: Fleet, keeper: Keeper
) -> None:
    mid = keeper.send_and_keep("fleet.kill_child")
    flower = started(serve, mid)
    answer = flower.post_json("/api/poison/act/discard", {"filter": "fleet"})
    assert (answer.status, fleet.quarantine.get(mid).state) == (400, "NDLV")


def test_given_up_messages_say_who_decided_why_and_when(serve: Serve, fleet: Fleet, keeper: Keeper) -> None:
    mid = keeper.send_and_keep("fleet.kill_child")
    flower = started(serve, mid)
    flower.post("/poison/act/discard", {"ids": mid, "note": "the customer left"}, **TOKEN)
    shown = cells(flower, "/poison?state=FAIL")
    assert "discarded" in shown and "ann (flower)" in shown and "the customer left" in shown
    page = flower.get(f"/poison/message/{mid}").text
    assert re.search(
        r"Given up</dt><dd>\d{4}-\d\d-\d\d [0-9:]{8} \w+, discarded by ann \(flower\): the", page
    )


def test_an_edited_message_is_given_up_and_leads_to_its_copy_and_back(
    serve: Serve, fleet: Fleet, keeper: Keeper
) -> None:
    mid = keeper.send_and_keep("fleet.healthy", 1)
    copy = fleet.quarantine.edit(mid, args=[2], hold=True, actor="ann", note="two was meant").copy
    flower = started(serve, copy)
    shown = cells(flower, "/poison?state=FAIL")
    assert "edited" in shown and "ann" in shown and "two was meant" in shown
    for one, other, said in ((mid, copy, "edited to"), (copy, mid, "copied from")):
        path, sentence = f"/poison/message/{one}", f"{said} {other} by ann: two was meant"
        wait_until(lambda: sentence in flower.get(path).text, what=sentence)  # noqa: B023
        assert f'<a href="/poison/message/{other}">' in flower.get(path).text


def test_what_died_again_after_its_release_is_counted_where_the_release_is_told(
    serve: Serve, fleet: Fleet, keeper: Keeper
) -> None:
    mids = [keeper.send_and_keep("fleet.kill_child") for _ in range(3)]
    flower = started(serve, *mids)
    answer = flower.post("/poison/act/release", {"ids": mids}, **TOKEN)
    told = answer.headers["Location"]
    result = '<div id="poison-result" data-live>'
    assert "3 messages released." in " ".join(flower.get(told).text.partition(result)[2].split())
    for _ in range(2):
        keeper.keep(keeper.receive(), crashes=1)
    wait_until(
        lambda: "3 messages released, and 2 came back." in flower.get(told).text, what="two died again"
    )
    wait_until(lambda: cells(flower, "/poison").count("died again") == 2, what="the list says so, too")


def test_the_stack_stands_at_the_top_of_a_message_as_lines_of_text(
    serve: Serve, fleet: Fleet, keeper: Keeper
) -> None:
    mid = keeper.send_and_keep("fleet.segfault", cause="signal:11")
    evidence: dict[str, Any] = {"signal": 11, "stack": STACK}
    keeper.ledger.client.hset(keeper.ledger.keys.message(mid), "evidence", json.dumps(evidence))
    page = started(serve, mid).get(f"/poison/message/{mid}").text
    users, below = re.findall(r"<pre>(.*?)</pre>", page, re.DOTALL)
    assert users.split("\n") == [STACK[0], f"<strong>{STACK[1]}</strong>", ""]
    assert below.split("\n") == [STACK[2], ""]
    assert page.index("<pre>") < page.index("On record")


def test_a_failure_is_decided_above_its_traceback_which_begins_at_the_users_code(
    serve: Serve, fleet: Fleet, keeper: Keeper
) -> None:
    lines = [
        "Traceback (most recent call last):",
        *('  File "/venv/site-packages/celery/app/trace.py", line 479, in trace_task', "    R = fun(*args)"),
        *('  File "/srv/shop/<b>.py", line 12, in charge', "    prices[sku]"),
        "KeyError: 'sku-9'",
    ]
    fleet.send("healthy", 1)
    kept = KeptFailure("KeyError", "'sku-9'", "\n".join(lines)).encode()
    mid = keeper.keep(keeper.receive(), "failure", 0, failure=kept, releases=1)
    flower = started(serve, mid)
    page = flower.get(f"/poison/message/{mid}").text
    _, users, below = (html.unescape(text) for text in re.findall(r"<pre>(.*?)</pre>", page, re.DOTALL))
    assert users.splitlines() == [lines[0], *lines[3:]]
    assert below.splitlines() == lines[1:3]
    assert page.index("/poison/preview/release") < page.index("<pre>")
    assert "<b>.py" not in page, "a path is hostile, too"
    for shown in (page, flower.get("/poison").text):
        assert "failed again" in shown and "died again" not in shown


def test_NEW_14_a_message_has_its_links_to_logs_on_its_page_in_show_and_in_the_answer_to_a_program(
    serve: Serve, new_fleet: Callable[..., Fleet], redis_url: str
) -> None:
    links = {"Logs": "https://logs.example.com/?q={task_id}&to={to}"}
    fleet = new_fleet(redis_url, poison_links=links)
    keeper = Keeper(fleet.app)
    fleet.app.send_task("fleet.healthy", (1,), task_id='"><b>')
    mid = keeper.keep(keeper.receive())
    keeper.close()
    flower, console = serve(user=ANN, of=fleet), Console(fleet.app)
    (url,) = console.json("show", mid)["links"].values()
    assert url.startswith("https://logs.example.com/?q=%22%3E%3Cb%3E&to=1")
    assert f"\nLogs: {url}\n" in console.out("show", mid)
    assert flower.get(f"/api/poison/message/{mid}").json["links"] == {"Logs": url}
    page = flower.get(f"/poison/message/{mid}").text
    assert f'<a href="{url.replace("&", "&amp;")}" target="_blank" rel="noopener noreferrer">Logs' in page


def test_every_moment_is_shown_with_its_zone(serve: Serve, fleet: Fleet, keeper: Keeper) -> None:
    mid = keeper.send_and_keep("fleet.kill_child")
    flower = started(serve, mid, env={"TZ": "Asia/Tokyo"})
    for path in ("/poison", f"/poison/message/{mid}"):
        moments = re.findall(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d( JST)?", flower.get(path).text)
        assert moments and {*moments} == {" JST"}, path
    assert "times in JST" in flower.get("/poison/incidents").text


def test_a_group_is_acted_on_from_its_row_as_a_whole_and_nothing_else(
    serve: Serve, fleet: Fleet, keeper: Keeper
) -> None:
    mids = [keeper.send_and_keep("fleet.kill_child") for _ in range(2)]
    other = keeper.send_and_keep("fleet.segfault", cause="signal:11")
    flower = started(serve, *mids, other)
    groups = flower.get("/poison").text.partition('id="poison-groups"')[2].partition("</table>")[0]
    asked = [html.unescape(text) for text in re.findall(r'name="filter" value="([^"]*)"', groups)]
    chosen = {"everything": "1", "filter": asked[0]}
    assert "/poison/preview/discard" in groups and "_xsrf" in groups
    assert "Discard 2 messages?" in flower.post("/poison/preview/discard", chosen, **TOKEN).text
    assert flower.post("/poison/preview/discard", chosen).status == 403
    flower.post("/poison/act/discard", chosen, **TOKEN)
    wait_until(lambda: [each.mid for each in fleet.quarantine.list()] == [other], what="only one group")


def test_a_search_shows_first_what_it_found_and_a_wrong_one_only_what_is_wrong_with_it(
    serve: Serve, fleet: Fleet, keeper: Keeper
) -> None:
    flower = started(serve, keeper.send_and_keep("fleet.kill_child"))
    groups, table = 'id="poison-groups"', 'id="poison-rows" data-live >'
    assert groups in flower.get("/poison").text
    found = flower.get("/poison?filter=task%3Dfleet.*").text
    assert table in found and found.index(table) < found.index(groups)
    wrong = flower.get("/poison?filter=age%3Ebanana")
    assert wrong.status == 400 and "use a number" in wrong.text
    assert groups not in wrong.text and table not in wrong.text


def test_a_page_that_cannot_be_shown_says_why_and_leads_back_but_not_to_strangers(
    serve: Serve, fleet: Fleet, keeper: Keeper
) -> None:
    flower = started(serve, keeper.send_and_keep("fleet.kill_child"))
    for answer in (flower.get("/poison/job/none"), flower.post("/poison/act/none", {}, **TOKEN)):
        assert answer.status == 404 and "Back to the quarantine" in answer.text
        assert "This act is not remembered" in answer.text or "There is no act none" in answer.text
    stranger = flower.get("/poison/job/none", Authorization="Basic YTpi")
    assert stranger.status == 401 and "quarantine" not in stranger.text


def test_a_suspect_that_died_on_trial_is_convicted_where_its_workers_death_is_told(
    fleet: Fleet, keeper: Keeper
) -> None:
    ledger, worker = keeper.ledger, "w1@host/b00t"
    ledger.fleet.beat(worker, {"node": "w1@host"}, first=True)
    led = ledger.fleet.lead("monitor", 60_000)
    assert led is not None
    ran = {}
    for name, args in {"kill_main": (), "healthy": (1,), "slow": (1.0,)}.items():
        sent = fleet.send(name, *args)
        message = keeper.receive()
        start = Start.of(f"b00t.{name}", worker, sent.id, f"fleet.{name}", queue="celery", max_crashes=2)
        assert ledger.messages.claim(mid_of(message.headers), b"", start)
        ran[name] = message, mid_of(message.headers), start
    ledger.fleet.declare_dead(worker, "i1", Silence.SILENT, 0, led[0])
    for _, mid, start in ran.values():
        ledger.messages.crash(mid, start, cause="worker_lost", shared=True, incident="i1", fence=led[0])
    for name in ("kill_main", "healthy"):
        message, mid, start = ran[name]
        trial = start._replace(token=f"cell.{name}", alone=IN_CELL)
        assert ledger.messages.claim(mid, b"", trial)
        if name == "healthy":
            ledger.messages.acquit(mid, trial, Guilt.CLEARED)
        else:
            # As a worker tells it of a cell: of no incident, since the worker lives.
            ledger.messages.crash(mid, trial, cause="signal:9", shared=False)
            keeper.keep(message, crashes=0)

    seen = incident_page.read(SimpleNamespace(quarantine=fleet.quarantine), "1h")  # type: ignore[arg-type]
    (death,) = seen.deaths
    verdicts = {suspect.task: suspect.verdict for suspect in death.suspects}
    assert verdicts == {"fleet.kill_main": "convicted", "fleet.healthy": "cleared", "fleet.slow": "suspected"}
    assert death.noticed == "silence"
    # One was killed in a cell, which is a process: it stands in a picture of its own, and hides no worker.
    assert [[*legend] for legend, _ in seen.pictures] == [[*incident_page.KINDS], ["process"]]
    of_workers, of_processes = (pictures[0] for _, pictures in seen.pictures)
    assert "1 death between" in of_workers and 'class="bar process"' not in of_workers
    assert 'class="bar process"' in of_processes


def test_a_page_behind_the_last_one_does_not_say_that_the_quarantine_is_empty(
    serve: Serve, fleet: Fleet, keeper: Keeper
) -> None:
    mid = keeper.send_and_keep("fleet.kill_child")
    flower = started(serve, mid)
    for query in ("offset=50", "offset=50&filter=kill_child"):
        shown = cells(flower, f"/poison?{query}")
        assert "Nothing is on this page any more. To the first page" in shown, query
        assert "Nothing is in quarantine" not in shown and "Nothing matches" not in shown, query
