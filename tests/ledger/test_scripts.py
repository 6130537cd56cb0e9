"""Every Lua file is held to its header."""

from __future__ import annotations

import re
from importlib import resources

import pytest
import redis

from celery_poison.extensions import ORDER
from celery_poison.ledger import scripts
from celery_poison.ledger.connection import open_redis
from celery_poison.ledger.keys import Keys
from celery_poison.ledger.scripts import Code, Script

#: The packages of extensions that have scripts, and all scripts.
ROOMS = [
    room
    for room in (f"celery_poison.extensions.{name}" for name in ORDER)
    if resources.files(room).joinpath("lua").is_dir()
]
NAMES = [
    *scripts.names(),
    *(f"{room}:{name}" for room in ROOMS for name in scripts.names(room)),
]


def _text(name: str) -> str:
    package, _, own = name.rpartition(":")
    return resources.files(package or "celery_poison.ledger").joinpath("lua", f"{own}.lua").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_each_script_declares_what_it_uses_returns_and_journals(name: str) -> None:
    text = _text(name)
    scripts.script(name)
    assert text.startswith(f"-- {name.rpartition(':')[2]}: ")
    assert re.search(r"^-- RETURNS ", text, re.M) and re.search(r"^-- JOURNALS ", text, re.M)
    returned = set(re.findall(r"\{'([A-Z]+)'", text))
    assert returned <= {code.value for code in Code}
    assert ("journal(" in text) == (not re.search(r"^-- JOURNALS nothing", text, re.M))


@pytest.mark.parametrize("name", NAMES)
def test_each_key_of_a_script_is_built_by_the_keys_module(name: str) -> None:
    named = {
        *Keys().fixed,
        *Keys().of_rooms,
        "lineage",
        "message",
        "worker",
        "incident",
        "group",
        "convictions",
        "tied",
        "lane",
        "asked",
    }
    named.add("copy")  # the message of another mid
    assert set(scripts.script(name).keys) <= named


def test_a_header_that_lies_is_refused() -> None:
    with pytest.raises(ValueError, match="does not declare"):
        Script("x", "-- KEYS[1] running\nreturn redis.call('GET', KEYS[2])")
    with pytest.raises(ValueError, match="in order"):
        Script("x", "-- ARGV[2] mid\nreturn ARGV[2]")


def test_no_script_builds_a_key_of_its_own() -> None:
    for name in NAMES:
        assert not re.search(r"redis\.call\('\w+', '[^']", _text(name)), name


def test_NEW_24_every_script_names_a_key_by_which_a_cluster_finds_the_node() -> None:
    assert all(scripts.script(name).keys for name in NAMES)


def test_NEW_24_a_script_that_reaches_a_key_which_it_does_not_name_is_caught(redis_url: str) -> None:
    client, named = open_redis(redis_url), Keys("shop").prefix
    reaching = "-- KEYS[1] meta\n-- ARGV[1] key\nreturn redis.pcall('EXISTS', KEYS[1], ARGV[1])"
    known, other = (Script(name, reaching).text for name in ("released", "new"))
    assert client.eval(known, 1, f"{named}meta", f"{named}message:1") == 0
    for text, key in ((known, "{mail}:message:1"), (other, f"{named}message:1")):
        with pytest.raises(redis.ResponseError, match="does not name: EXISTS"):
            client.eval(text, 1, f"{named}meta", key)
