"""`celery poison outbox`, `block --queue` and `unblock --queue`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from celery_poison.desk.owner import default_actor
from celery_poison.testing.servers import wait_until
from tests.apps.harness import ROOT, Fleet
from tests.cli.conftest import Console
from tests.producer.kit import NOWHERE, Shop, tied


@pytest.fixture
def away(new_shop: Callable[..., Shop]) -> Shop:
    """A shop whose broker is away; two messages wait, and their failure was told."""
    shop = new_shop(NOWHERE, poison_outbox_retries=0)
    shop.charge(1, 2)
    shop.relay()
    return shop


@pytest.fixture
def desk(away: Shop) -> Console:
    return Console(away.app)


def test_TP1_6_what_waits_is_shown_tried_again_and_dropped(desk: Console, away: Shop) -> None:
    shown = desk.json("outbox", "status")
    (lane,) = shown["destinations"]
    assert (lane["queue"], lane["waiting"], lane["cause"], lane["blocked"]) == (
        "celery",
        2,
        "transport",
        None,
    )
    assert lane["due_in"] > 500 and shown["failed"] == 0
    assert "transport: the broker is not reachable" in desk.out("outbox", "status")
    assert "outbox      2 messages wait to be sent; trouble with celery" in desk.out("status")
    first, second = desk.json("outbox", "list", "--queue", "celery")
    assert (first["seq"] < second["seq"], first["task"], first["lane"]) == (True, "shop.charge", "celery")
    assert desk.json("outbox", "list", "--task", "shop.pack") == []
    assert len(desk.out("outbox", "list").splitlines()) == 3
    told = desk.json("outbox", "show", str(first["seq"]))
    assert (told["headers"]["task"], "body" in told) == ("shop.charge", False)
    assert "headers" in desk.out("outbox", "show", str(first["seq"]))
    assert desk.out("outbox", "retry", "--queue", "celery") == "1 destination tried again now\n"
    assert desk.json("outbox", "status")["destinations"][0]["due_in"] == 0
    done = desk.json("outbox", "drop", str(first["seq"]), "--note", "by hand")
    assert done == [{"seq": first["seq"], "done": True, "error": ""}]
    assert away.waiting() == [2]
    assert "was sent, or dropped" in desk.run("outbox", "drop", str(first["seq"]), status=1).stderr
    assert away.events()[-1] == "send_dropped"


def test_TP1_4_a_queue_is_blocked_shown_and_unblocked(desk: Console, away: Shop) -> None:
    assert desk.out("block", "--queue", "mail", "--note", "their disk is full").startswith(
        "blocked  sending to queue mail"
    )
    assert desk.json("block", "--queue", "mail", "--task", "shop.pack")["new"]
    rows = {(each["queue"], each["task"]): each for each in desk.json("outbox", "status")["destinations"]}
    assert rows["mail", ""]["blocked"]["actor"] == default_actor()
    assert f"BLOCKED by {default_actor()}" in desk.out("outbox", "status")
    seen = desk.json("status")
    assert "sending to mail is blocked" in seen["verdict"]
    assert any(typed.endswith("poison outbox status") for typed in seen["next"])
    desk.run("unblock", "--queue", "mail", "--task", "shop.pack")
    assert desk.json("unblock", "--queue", "mail")["queue"] == "mail"
    assert "is not blocked" in desk.run("unblock", "--queue", "mail", status=1).stderr
    assert "holds until a person" in desk.run("block", "--queue", "q", "--expires", "1h", status=2).stderr


def test_TP1_6_a_blockade_that_stops_consuming_too_ends_the_pause_that_it_has_set_and_no_other(
    desk: Console,
) -> None:
    def paused() -> list[str]:
        return [each["note"] for each in desk.json("status")["paused"]]

    desk.run("block", "--queue", "mail", "--consuming", "--note", "moving house")
    assert paused() == ["sending to it is blocked: moving house"]
    desk.run("unblock", "--queue", "mail")
    assert paused() == []
    for pause_first in (True, False):  # a person's own pause, before or since
        typed = [
            ("pause", "--queue", "mail", "--force", "--note", "mine"),
            ("block", "--queue", "mail", "--consuming"),
        ]
        for each in typed if pause_first else typed[::-1]:
            desk.run(*each)
        desk.run("unblock", "--queue", "mail")
        assert paused() == ["mine"]
    assert "a whole queue" in desk.run(*typed[1], "--task", "t", status=2).stderr
    assert "goes with --queue" in desk.run("block", "--task", "t", "--consuming", status=2).stderr


def test_TP1_5_a_tied_message_that_failed_is_listed_and_sent_again_by_its_number(
    new_shop: Callable[..., Shop],
) -> None:
    shop = new_shop(NOWHERE, poison_outbox_retries=0)
    desk = Console(shop.app)
    with tied(shop):
        shop.charge(1)
    shop.relay()
    assert desk.json("outbox", "status")["failed"] == 1
    assert desk.json("status")["unsent"] == 1
    (failed,) = desk.json("outbox", "list", "--failed")
    assert (failed["failed"], failed["tied"], failed["lane"]) == (True, True, None)
    desk.run("outbox", "retry", str(failed["seq"]))
    assert desk.json("outbox", "list", "--failed") == []
    assert len(desk.json("outbox", "list")) == 1


def test_a_standalone_relay_sends_until_it_is_told_to_stop(
    assemble: Callable[..., Fleet], redis_url: str
) -> None:
    fleet = assemble(Fleet, redis_url, poison_outbox=True)
    fleet.send("healthy", 1)
    channel = fleet.app.connection_for_read().channel()
    command = [sys.executable, "-m", "celery", "-A", "tests.apps.fleet", "poison", "outbox", "run"]
    with subprocess.Popen(command, env=os.environ | fleet.environ(), cwd=ROOT) as relay:
        wait_until(lambda: channel.client.llen("celery") == 1, what="it was sent")
        relay.send_signal(signal.SIGTERM)
        assert relay.wait(timeout=30) == 0
