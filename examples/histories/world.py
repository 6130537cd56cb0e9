"""The shop: its tasks, workers and releases, and what is wrong with some of them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import UTC, datetime

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
KINDS = ("fingerprint", "task", "shape", "payload", "host", "release")


@dataclass(frozen=True)
class Task:
    """One task of the shop.

    Attributes:
        share: of all messages.
        runtime_ms, payload: medians.
        kinds: how many different arguments it is called with.
    """

    name: str
    share: float
    runtime_ms: int
    payload: int
    kinds: int
    shapes: tuple[str, str] = ("int", "int;dry=bool")
    queue: str = "default"


TASKS = (
    Task("shop.cart.touch", 18, 40, 300, 200_000),
    Task("shop.cart.expire", 6, 90, 200, 200_000),
    Task("shop.order.place", 5, 700, 4_000, 2_000_000_000, ("dict", "dict,str")),
    Task("shop.order.confirm", 5, 300, 900, 2_000_000_000),
    Task("shop.order.export", 1, 9_000, 2_000, 40_000, ("str,date", "str,date,date")),
    Task("shop.mail.send", 14, 450, 6_000, 2_000_000_000, ("str,dict", "str,dict;html=bool"), "mail"),
    Task("shop.mail.bounce", 2, 120, 2_500, 500_000, ("dict", "dict;raw=str"), "mail"),
    Task("shop.image.resize", 7, 1_800, 500_000, 400_000, ("str,int,int", "str,int,int;fit=str"), "media"),
    Task("shop.image.ocr", 1.5, 6_000, 900_000, 400_000, ("str", "str;lang=str"), "media"),
    Task("shop.video.probe", 0.8, 4_000, 700, 90_000, ("str", "str,null"), "media"),
    Task("shop.pdf.render", 4, 1_200, 30_000, 2_000_000_000, ("dict", "dict;page=str"), "media"),
    Task("shop.pdf.merge", 1, 2_500, 200_000, 2_000_000_000, ("list[str]", "list[]"), "media"),
    Task("shop.search.index", 9, 150, 5_000, 300_000, ("int,dict", "int,null")),
    Task("shop.search.rebuild", 0.05, 300_000, 100, 12, ("str", "str;full=bool")),
    Task("shop.stock.sync", 8, 220, 1_200, 60_000, ("str,int", "str,null")),
    Task("shop.stock.import", 0.6, 20_000, 3_000_000, 5_000, ("bytes", "bytes;sep=str")),
    Task("shop.price.compute", 6, 500, 800, 60_000, ("str,float", "str,float;vat=float")),
    Task("shop.report.daily", 0.2, 60_000, 300, 400, ("date", "date;team=str")),
    Task("shop.ping", 3, 5, 100, 1, ("", "")),
    Task("shop.fraud.score", 3, 900, 7_000, 2_000_000_000, ("dict", "dict;fast=bool")),
    Task("shop.geo.lookup", 2.5, 80, 150, 900_000, ("str", "str;v6=bool")),
    Task("shop.webhook.post", 3, 1_500, 3_000, 2_000_000_000, ("str,dict", "str,dict;tries=int")),
)


@dataclass(frozen=True)
class World:
    """One history's setting.

    Attributes:
        attempts: healthy ones, about; troubles come on top.
        troubles: for each of them so many attempts of messages in trouble, about; by default as many as a
            history of five million has at one in seven hundred; in proportion, but for the shortest.
        seed: the same seed, the same history.
    """

    attempts: int = 5_000_000
    seed: int = 7
    days: int = 30
    hosts: int = 8
    slots: int = 8
    deploy_every_days: int = 3
    start: datetime = field(default=datetime(2026, 1, 5, tzinfo=UTC))
    troubles: float | None = None

    def __post_init__(self) -> None:
        if self.days <= self.deploy_every_days:
            raise ValueError(
                f"{self.days} days with a deploy every {self.deploy_every_days} have a single release: a bad"
                " one shows only beside others"
            )

    @property
    def start_ms(self) -> int:
        return int(self.start.timestamp() * 1000)

    @property
    def host_names(self) -> list[str]:
        return [f"app-{n + 1:02}" for n in range(self.hosts)]

    @property
    def nodes(self) -> list[str]:
        return [f"{pool}@{host}" for host in self.host_names for pool in ("main", "media")]

    @property
    def releases(self) -> list[str]:
        return [f"2026.{n + 1}" for n in range(-(-self.days // self.deploy_every_days))]

    @property
    def bad_release(self) -> int:
        """The number of the release that is planted to be bad: the last one where there are only a few."""
        return min(BAD_RELEASE[1], len(self.releases) - 1)

    def release_number(self, at_ms: int) -> int:
        number = (at_ms - self.start_ms) // (self.deploy_every_days * DAY_MS)
        return min(number, len(self.releases) - 1)

    def incarnation(self, node: int, release: int) -> str:
        """Every deploy starts every worker anew, so that a worker's life is known by its release."""
        boot = random.Random(f"{self.seed}/{node}/{release}").getrandbits(32)
        return f"{self.nodes[node]}/{boot:08x}"

    @property
    def size(self) -> float:
        """How much of the planted trouble a history has; short ones have enough of it to be found."""
        if self.troubles is not None:
            return max(0.15, self.troubles * self.attempts / PLANTED)
        return max(0.15, self.attempts / 5_000_000)


#: Attempts of messages in trouble in a history of size 1.
PLANTED = 7_200
#: What is planted. Keys as ``celery_poison.pipeline.blame`` builds them.
BAD_TASK = "shop.image.ocr"
BAD_SHAPE = ("shop.pdf.merge", "list[]")
BAD_PAYLOAD = ("shop.stock.import", 40_000_000)
BAD_HOST = "app-05"
BAD_RELEASE = ("shop.fraud.score", 6)
#: Tasks that get poisonous messages, each kind of arguments for itself.
POISONED = ("shop.pdf.render", "shop.order.place", "shop.video.probe", "shop.webhook.post")
POISONS = 24
