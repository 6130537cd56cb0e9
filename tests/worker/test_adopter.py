"""Which messages of a dead worker a standby keeps for trials of its own, and which it leaves (NEW-1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from celery_poison.broker.adoption import Adoption
from celery_poison.ledger import Keys, Ledger
from celery_poison.records import Start
from celery_poison.worker.adopter import Adopter
from celery_poison.worker.standby import why_it_tries_nothing
from tests.apps.factory import build_app
from tests.broker.kit import Receiver, Site


class Scene:
    """A dead worker that held messages 0 to 2, of which 1 is a suspect, and a standby beside it."""

    def __init__(self, url: str) -> None:
        self.site = Site(url)
        self.ledger = Ledger(self.site.raw, Keys("ns"))
        self.site.send(0, 1, 2)
        dead = self.site.receiver()
        dead.receive(3)
        dead.die()
        self.dead = dead.boot_id
        self.hands = Receiver(self.site, "f" * 16, ["elsewhere"])
        self.calls: list[Callable[[], None]] = []
        self.runtime: Any = SimpleNamespace(
            ledger=self.ledger,
            app=self.site.app,
            activation_ms=60_000,
            cells=SimpleNamespace(are_usable=True),
            stopping=False,
            may_start=lambda: True,
            bridge=SimpleNamespace(call=self.calls.append),
            consumer=SimpleNamespace(task_consumer=self.hands.consumer),
            complain=lambda error: None,
        )

    def suspect(self, n: int) -> None:
        start = Start("R", f"dead.{n}", f"w@h/{self.dead}", 1, 1, 1, 0, f"id-{n}", "t", "a", 2, 5, 1, 1)
        self.ledger.crash(f"m{n}", start, cause="worker_lost", shared=True)

    def adopt(self) -> int:
        adoption = Adoption(self.hands.channel)
        tags = adoption.tags_of(self.dead)
        left = Adopter(self.runtime).adopt(adoption, self.dead, tags)
        for call in self.calls:
            call()
        assert self.site.everything() == ["m0", "m1", "m2"]
        return len(tags) - len(left)


@pytest.fixture
def scene(redis_url: str) -> Iterator[Scene]:
    made = Scene(redis_url)
    made.suspect(1)
    yield made
    made.hands.connection.close()
    made.site.close()


def test_NEW_1_a_standby_keeps_the_suspects_and_only_those(scene: Scene) -> None:
    assert scene.adopt() == 1
    (message,) = scene.hands.messages
    assert message.headers["id"] == "id-1"


def test_NEW_1_a_standby_leaves_suspects_to_a_worker_that_lives_and_serves_their_queue(scene: Scene) -> None:
    scene.ledger.beat("w2@h/b", {"queues": "b,a"}, first=True)
    assert scene.adopt() == 0
    scene.site.raw.hset(scene.ledger.keys.gone, "w2@h/b", 1)
    assert scene.adopt() == 1, "it is about to be declared dead, too"


def test_NEW_1_a_worker_of_other_queues_is_no_reason_to_leave_them(scene: Scene) -> None:
    scene.ledger.beat("w2@h/b", {"queues": "b"}, first=True)
    assert scene.adopt() == 1


@pytest.mark.parametrize("reason", ["it leaves", "no cells", "in doubt"])
def test_NEW_1_a_standby_that_can_try_nobody_now_takes_nothing(scene: Scene, reason: str) -> None:
    runtime = scene.runtime
    match reason:
        case "it leaves":
            runtime.stopping = True
        case "no cells":
            runtime.cells.are_usable = False
        case "in doubt":
            runtime.may_start = lambda: False
    assert scene.adopt() == 0


def test_NEW_1_what_cannot_come_in_at_this_moment_goes_back_to_its_own_queue(scene: Scene) -> None:
    scene.runtime.consumer.task_consumer = None
    assert scene.adopt() == 1
    assert [message["headers"]["id"] for message in scene.site.waiting()["a"]] == ["id-1"]
    assert len(scene.site.entries()) == 2, "of the dead worker"


@pytest.mark.parametrize(
    ("environ", "reason"),
    [
        ({}, ""),
        ({"poison_trial": "off"}, "poison_trial is 'off'"),
        ({"poison_observe_only": True}, "poison_observe_only"),
        ({"broker_url": "amqp://127.0.0.1:1//"}, "only with Redis"),
    ],
)
def test_NEW_1_where_a_standby_can_keep_nothing_it_says_why(
    redis_url: str, environ: dict[str, Any], reason: str
) -> None:
    app = build_app({"BROKER_URL": redis_url, "RESULT_BACKEND": redis_url, "POISON_REDIS_URL": redis_url})
    app.conf.update(environ)
    why = why_it_tries_nothing(app)
    assert reason in why
    assert bool(why) == bool(reason)
    app.close()
