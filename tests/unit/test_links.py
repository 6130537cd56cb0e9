"""Links to logs and trackers are filled from a record of which a publisher chose much (NEW-14)."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from celery_poison.model import MessageRecord
from celery_poison.rules.links import FIELDS, check_links, links_of
from tests.docs.pages import DOCS

RECORD = MessageRecord(
    id="1f2e3d4c",
    mid="m1",
    task="shop.render",
    queue="slow lane",
    state="NDLV",
    cause="signal:11",
    worker="w1@web-3/ab12cd",
    first_seen=1_700_000_000.25,
    last_seen=1_700_000_009.0,
)


def test_NEW_14_each_field_of_a_link_has_its_value_quoted() -> None:
    template = "https://x.example.com/{task}?" + "&".join(f"{name}={{{name}}}" for name in FIELDS) + "&b={{}}"
    assert check_links({"Logs": template}) is None
    url = links_of({"Logs": template}, RECORD)["Logs"]
    assert url.startswith("https://x.example.com/shop.render?") and url.endswith("&b={}")
    assert {name: value for name, (value,) in parse_qs(urlsplit(url).query).items() if name != "b"} == {
        "task_id": "1f2e3d4c",
        "task": "shop.render",
        "queue": "slow lane",
        "cause": "signal:11",
        "worker": "w1@web-3",
        "host": "web-3",
        "from": "1699999940250",
        "to": "1700000069000",
        "from_iso": "2023-11-14T22:12:20Z",
        "to_iso": "2023-11-14T22:14:29Z",
    }


def test_NEW_14_a_link_without_its_value_is_left_out_and_one_without_fields_stays() -> None:
    bare = MessageRecord(id="1f2e", mid="m", task="", queue="", state="TBDL")
    board = "http://[::1]:3000/board"
    templates = {
        "Id": "https://x/{task_id}",
        "Task": "https://x/{task}",
        "To": "https://x/{to}",
        "Board": board,
    }
    assert check_links(templates) is None
    assert links_of(templates, bare) == {"Id": "https://x/1f2e", "Board": board}
    assert links_of(None, bare) == {}


@pytest.mark.parametrize(
    ("templates", "said"),
    [
        ({"Logs": "https://x/{taskid}"}, "in 'Logs' there is no field {taskid}: use task_id, task, queue"),
        ({"Logs": "https://x/{a"}, "in 'Logs' a brace stands alone: use {{ and }}"),
        ({"Logs": "ftp://x/"}, "in 'Logs' use http:// or https:// and a host"),
    ],
)
def test_NEW_14_what_is_wrong_with_a_link_is_one_sentence(templates: dict[str, str], said: str) -> None:
    assert (check_links(templates) or "").startswith(said)


TEMPLATE = "https://logs.example.com/find/{task}?q={task_id}&team=shop"


@given(st.text())
@example("..")
@example("../admin")
@example("a&team=other#x")
@example("\ud800")
@example("@evil.example.com/")
def test_NEW_14_whatever_a_publisher_calls_a_task_leads_to_no_other_place(name: str) -> None:
    record = MessageRecord(id=name, mid="m", task=name, queue="", state="NDLV")
    for url in links_of({"Logs": TEMPLATE}, record).values():
        assert url.isascii() and url.isprintable() and not set(url) & set(" <>\"'`\\|*@[]")
        parts = urlsplit(url)
        assert (parts.scheme, parts.netloc, parts.fragment) == ("https", "logs.example.com", "")
        assert len(parts.path.split("/")) == 3 and not {"..", "."} & {*parts.path.split("/")}
        query = parse_qs(parts.query, errors="surrogatepass")
        assert {*query} == {"q", "team"} and query["team"] == ["shop"]


def test_the_page_of_settings_names_each_field_of_a_link() -> None:
    page = (DOCS / "settings.md").read_text("utf-8")
    (line,) = (part for part in page.split("\n- ") if part.startswith("`poison_links"))
    assert not [name for name in FIELDS if f"`{name}`" not in line and f"{{{name}}}" not in line]
