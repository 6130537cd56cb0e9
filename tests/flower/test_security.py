"""Who comes in and who may act, in every mode of Flower. Run on other versions by `tox -e flower201` etc."""

from __future__ import annotations

import pytest
from flower.options import options
from tornado.web import create_signed_value

from tests.apps.harness import Fleet
from tests.desk.keeping import Keeper
from tests.flower.conftest import Serve
from tests.flower.served import ANN, Answer, FlowerServer

PAGES = (
    "/poison",
    "/poison?state=FAIL",
    "/poison/message/{mid}",
    "/poison/body/{mid}",
    "/poison/repro/{mid}",
    "/poison/incidents",
    "/poison/incident/i1",
    "/poison/block",
)
API = (
    "/api/poison/status",
    "/api/poison/groups",
    "/api/poison/messages",
    "/api/poison/message/{mid}",
    "/api/poison/body/{mid}",
    "/api/poison/incidents",
    "/api/poison/actions",
    "/api/poison/held",
    "/api/poison/blocks",
    "/api/poison/proposal",
)
ACTS = (
    "/poison/preview/discard",
    "/poison/act/discard",
    "/poison/act/schedule",
    "/poison/act/unschedule",
    "/poison/job/1",
    "/poison/gate/lift",
    "/poison/held/begin",
    "/poison/held/resume",
    "/poison/edit/1",
    "/poison/block",
    "/poison/block/end",
    "/poison/proposal/apply",
    "/poison/proposal/dismiss",
)
API_ACTS = (
    "/api/poison/act/discard",
    "/api/poison/act/schedule",
    "/api/poison/act/unschedule",
    "/api/poison/job/1",
    "/api/poison/gate/lift",
    "/api/poison/held/begin",
    "/api/poison/held/resume",
    "/api/poison/block",
    "/api/poison/unblock",
    "/api/poison/proposal/apply",
    "/api/poison/proposal/dismiss",
)
TOKEN = "0123456789abcdef0123456789abcdef"
WITH_TOKEN = {"Cookie": f"_xsrf={TOKEN}", "X_XSRFToken": TOKEN}
ANONYMOUS = {"Authorization": ""}
SECRET = "a secret for cookies of the tests"
OAUTH = (
    "--auth=ann@example.com",
    "--auth_provider=flower.views.auth.GithubLoginHandler",
    "--oauth2_key=key",
    "--oauth2_secret=secret",
    "--oauth2_redirect_uri=http://127.0.0.1/login",
    f"--cookie_secret={SECRET}",
)
#: Requests that a page of somebody else could make a browser send, with everything else in order.
FORGED = {
    "no token": {"Cookie": "", "X_XSRFToken": ""},
    "a token that is not the cookie's": {"X_XSRFToken": TOKEN[::-1]},
    "a foreign origin": {"Origin": "https://evil.example"},
    "no origin in a frame without one": {"Origin": "null"},
    "an origin that is none": {"Origin": "http://["},
    "the origin of another port": {"Origin": "http://127.0.0.1:1"},
    "another site": {"Sec_Fetch_Site": "cross-site"},
    "a subdomain": {"Sec_Fetch_Site": "same-site"},
    "an address typed in": {"Sec_Fetch_Site": "none"},
}


class Kept:
    """One message in quarantine, and whether it is still there."""

    def __init__(self, fleet: Fleet, keeper: Keeper) -> None:
        self.fleet = fleet
        self.mid = keeper.send_and_keep("fleet.kill_child")
        self.id = fleet.quarantine.get(self.mid).id
        client, keys = keeper.ledger.client, keeper.ledger.keys
        client.hset(keys.incident("i1"), mapping={"incident": "i1", "worker": "w1@test/b00t", "cause": "oom"})
        client.zadd(keys.incidents, {"i1": 1})

    def paths(self, *patterns: str) -> list[str]:
        return [pattern.format(mid=self.mid, id=self.id) for pattern in patterns]

    def is_there(self) -> bool:
        return [record.mid for record in self.fleet.quarantine.list()] == [self.mid]

    def act(self, flower: FlowerServer, path: str, **headers: str) -> Answer:
        return flower.post(path, {"ids": self.mid}, **{**WITH_TOKEN, **headers})


def statuses(flower: FlowerServer, paths: list[str], **headers: str) -> set[int]:
    return {flower.get(path, **headers).status for path in paths}


def refuses_forged_acts(flower: FlowerServer, kept: Kept, **user: str) -> None:
    for name, headers in FORGED.items():
        cookies = {**WITH_TOKEN, **user, **headers}
        if "Cookie" in user and headers.get("Cookie") != "":
            cookies["Cookie"] = f"{user['Cookie']}; {WITH_TOKEN['Cookie']}"
        elif "Cookie" in user:
            cookies["Cookie"] = user["Cookie"]
        for path in (*ACTS, *API_ACTS):
            answer = kept.act(flower, path, **cookies)
            assert answer.status == 403, (name, path, answer)
    for headers in ({"Origin": "https://evil.example"}, {"Sec_Fetch_Site": "cross-site"}):
        for path in API_ACTS:
            assert flower.post_json(path, {"ids": [kept.mid]}, **{**user, **headers}).status == 403, (
                headers,
                path,
            )
    assert kept.is_there()


def test_without_authentication_pages_are_open_as_flowers_are_and_nobody_acts(
    serve: Serve, fleet: Fleet, keeper: Keeper
) -> None:
    kept, flower = Kept(fleet, keeper), serve()
    bodies = kept.paths("/poison/body/{mid}", "/poison/repro/{mid}")
    pages = [path for path in kept.paths(*PAGES) if path not in bodies]
    assert statuses(flower, pages) == {200}
    assert statuses(flower, bodies) == {403}
    assert statuses(flower, kept.paths(*API)) == {401}
    assert {kept.act(flower, path).status for path in ACTS} == {403}
    assert {flower.post_json(path, {"ids": [kept.mid]}).status for path in API_ACTS} == {401}
    assert kept.is_there()
    page = flower.get("/poison").text
    assert "data-preview" not in page and "/poison/block?" not in page
    assert "does not ask who you are" in page
    edit = flower.get(f"/poison/edit/{kept.mid}")
    assert edit.status == 403 and "<textarea" not in edit.text


def test_with_FLOWER_UNAUTHENTICATED_API_everybody_acts_but_no_other_site(
    serve: Serve, fleet: Fleet, keeper: Keeper
) -> None:
    kept, flower = Kept(fleet, keeper), serve(env={"FLOWER_UNAUTHENTICATED_API": "true"})
    assert statuses(flower, kept.paths(*API)) == {200}
    for path in kept.paths(*PAGES, *API):
        assert "Access-Control-Allow-Origin" not in flower.get(path).headers, path
        assert "Access-Control-Allow-Origin" not in flower.ask("OPTIONS", path).headers, path
    refuses_forged_acts(flower, kept)
    assert (
        kept.act(flower, "/poison/act/discard", Origin=flower.url, Sec_Fetch_Site="same-origin").status == 303
    )
    assert not kept.is_there()


def test_with_basic_authentication_who_has_no_password_sees_nothing(
    serve: Serve, fleet: Fleet, keeper: Keeper
) -> None:
    kept, flower = Kept(fleet, keeper), serve(user=ANN)
    everything = kept.paths(*PAGES, *API)
    assert statuses(flower, everything, **ANONYMOUS) == {401}
    assert statuses(flower, everything, Authorization="Basic YW5uOndyb25n") == {401}
    assert statuses(flower, everything) == {200}
    for path in (*ACTS, *API_ACTS):
        assert kept.act(flower, path, **ANONYMOUS).status in (401, 403)
    refuses_forged_acts(flower, kept)
    assert flower.post_json("/api/poison/act/discard", {"ids": [kept.mid], "note": "gone"}).json["done"] == 1
    record = fleet.quarantine.get(kept.mid)
    assert (record.resolution, record.actor, record.note) == ("discarded", "ann (flower)", "gone")


def test_with_a_url_prefix_all_is_the_same_below_it(serve: Serve, fleet: Fleet, keeper: Keeper) -> None:
    kept, flower = Kept(fleet, keeper), serve(user=ANN, prefix="tools/flower")
    assert statuses(flower, kept.paths(*PAGES, *API), **ANONYMOUS) == {401}
    assert flower.get("/poison/static/poison.css").status == 200
    page = flower.get("/poison").text
    for path in ("/poison/static/poison.js", "/poison/preview/release", f"/poison/message/{kept.mid}"):
        assert f'"/tools/flower{path}"' in page, path
    assert '"/poison' not in page
    refuses_forged_acts(flower, kept)
    answer = kept.act(flower, "/poison/act/discard")
    assert answer.status == 303
    assert answer.headers["Location"].startswith("/tools/flower/poison?job=")
    assert not kept.is_there()


def test_with_OAuth_strangers_are_sent_to_the_login_and_the_journal_names_the_user(
    serve: Serve, fleet: Fleet, keeper: Keeper
) -> None:
    kept, flower = Kept(fleet, keeper), serve(*OAUTH)
    for path in kept.paths(*PAGES):
        answer = flower.get(path)
        assert (answer.status, answer.headers["Location"].partition("?")[0]) == (302, "/login"), path
    assert statuses(flower, kept.paths(*API)) <= {302, 401, 403}
    assert {kept.act(flower, path).status for path in (*ACTS, *API_ACTS)} == {403}

    def cookie(user: str) -> str:
        return f"user={create_signed_value(SECRET, 'user', user).decode()}"

    ann, eve = cookie("ann@example.com"), cookie("eve@elsewhere.example")
    assert statuses(flower, kept.paths(*PAGES, *API), Cookie=ann) == {200}
    assert statuses(flower, kept.paths(*PAGES), Cookie=eve) == {302}
    refuses_forged_acts(flower, kept, Cookie=ann)
    assert kept.act(flower, "/poison/act/discard", Cookie=f"{eve}; _xsrf={TOKEN}").status == 403
    assert kept.is_there()
    assert kept.act(flower, "/poison/act/discard", Cookie=f"{ann}; _xsrf={TOKEN}").status == 303
    assert fleet.quarantine.get(kept.mid).actor == "ann@example.com (flower)"


@pytest.mark.skipif("read_only" not in options, reason="this Flower has no read-only mode")
def test_read_only_shows_everything_and_offers_nothing(serve: Serve, fleet: Fleet, keeper: Keeper) -> None:
    kept, flower = Kept(fleet, keeper), serve("--read_only=True", user=ANN)
    assert statuses(flower, kept.paths(*PAGES, *API)) == {200}
    assert {kept.act(flower, path).status for path in (*ACTS, *API_ACTS)} == {403}
    assert flower.post_json("/api/poison/act/discard", {"ids": [kept.mid]}).status == 403
    assert kept.is_there()
    for path in ("/poison", f"/poison/message/{kept.mid}"):
        page = flower.get(path).text
        assert "data-preview" not in page and "/poison/edit/" not in page and "/poison/block?" not in page
        assert "Read only mode is enabled" in page
    assert "<form" not in flower.get("/poison/block").text.partition("poison-header")[2]
    assert flower.get(f"/poison/edit/{kept.mid}").status == 403


def test_every_answer_forbids_frames_caches_and_foreign_scripts(
    serve: Serve, fleet: Fleet, keeper: Keeper
) -> None:
    kept, flower = Kept(fleet, keeper), serve(user=ANN)
    for path in kept.paths(*PAGES, *API):
        headers = flower.get(path).headers
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"], path
        assert headers["Cache-Control"] == "no-store", path
        assert headers["X-Content-Type-Options"] == "nosniff", path
    body = flower.get(f"/poison/body/{kept.mid}")
    assert body.headers["Content-Type"] == "application/octet-stream"
    assert body.headers["Content-Disposition"].startswith("attachment")
    assert body.body == fleet.quarantine.message(kept.mid).body
    repro = flower.get(f"/poison/repro/{kept.mid}")
    assert repro.headers["Content-Disposition"].startswith('attachment; filename="test_fleet_kill_child_')
    assert b"TASK = 'fleet.kill_child'" in repro.body
    assert f'href="/poison/repro/{kept.mid}"' in flower.get(f"/poison/message/{kept.mid}").text
