"""The doctor finds each fault, names its cure, and leaves nothing behind."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from kombu import Queue

from celery_poison.basics.parts import Finding
from celery_poison.cli import cluster_checks
from celery_poison.cli import redis_checks as server_checks
from celery_poison.cli.doctor import _check_queues
from celery_poison.plugin import plugin_of
from celery_poison.testing import RedisServer, wait_until
from celery_poison.upstream import hooks
from tests.apps.harness import Fleet
from tests.cli.conftest import Console
from tests.desk.keeping import Keeper
from tests.fleet.inbox import SECRET, Inbox

Build = Callable[..., Any]
NewServer = Callable[..., RedisServer]

OK_EVERYWHERE = [
    "settings",
    "celery",
    "reachable",
    "encryption",
    "version",
    "persistence",
    "eviction",
    "memory",
    "role",
]
OK_EVERYWHERE += [
    "durability",
    "permissions",
    "writable",
    "presence",
    "clock",
    "owner",
    "stuck",
    "workers",
    "tasks",
    "broker",
    "idle",
    "results",
]


def levels(console: Console, status: int = 0) -> dict[str, str]:
    return {finding["check"]: finding["level"] for finding in console.json("doctor", status=status)}


def finding(console: Console, check: str, status: int = 0) -> dict[str, str]:
    (found,) = [f for f in console.json("doctor", status=status) if f["check"] == check]
    return dict(found)


def test_a_healthy_installation_passes_and_nothing_is_left_behind(
    new_fleet: Build, new_server: NewServer
) -> None:
    server = new_server(appendonly="yes")
    console = Console(new_fleet(server.url(), poison_redis_url=server.url(3)).app)
    assert levels(console) == dict.fromkeys(OK_EVERYWHERE, "ok")
    assert not server.client(3).keys()
    assert not server.client(0).keys("*poison*")


def test_the_report_for_people_has_one_line_for_each_check_and_one_for_each_cure(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("celery_poison.cli.output.is_terminal", lambda: True)
    result = console.run("doctor")
    found = f"{len(OK_EVERYWHERE)} checks: 1 with a warning, {len(OK_EVERYWHERE) - 1} well\n"
    assert result.output.startswith(found)
    assert result.output.endswith("poison status\n")
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    checks = [line.split()[1] for line in lines if not line.startswith(" ")]
    assert checks == OK_EVERYWHERE
    assert any(line.strip() == "cure: set appendonly yes" for line in lines)


def test_WAS_8_what_lies_in_the_spool_of_this_machine_is_told(
    new_fleet: Build, redis_url: str, tmp_path: Path
) -> None:
    spool = tmp_path / "spool"
    console = Console(new_fleet(redis_url, poison_spool_directory=str(spool)).app)
    assert finding(console, "spool")["level"] == "ok", "another machine's"
    spool.mkdir(0o700)
    (spool / f"{0:032x}.json").write_text("{}")
    found = finding(console, "spool")
    assert found["level"] == "warn" and found["said"].startswith("1 message that quarantine could not take")


@pytest.mark.parametrize("broker_url", ["rabbitmq"], indirect=True)
def test_NEW_30_RabbitMQ_is_named_with_its_version_and_what_follows(
    new_fleet: Build, broker_url: str
) -> None:
    console = Console((fleet := new_fleet(broker_url, task_default_queue_type="quorum")).app)
    assert finding(console, "broker")["said"].startswith("RabbitMQ ")
    has_exclusive = fleet.app.conf.get("control_queue_exclusive")  # since Celery 5.7
    assert bool(has_exclusive) == ("RESOURCE_LOCKED" in str(console.json("doctor")))
    found = finding(console, "delays")
    assert found["level"] == "warn" and found["said"].startswith("celery: ") and "topic" in found["cure"]


def test_what_celery_lacks_is_told_with_what_follows_from_it(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert re.match(r"celery 5\.\d.*, kombu 5\.\d.*, billiard 4\.\d", finding(console, "celery")["said"])
    monkeypatch.setattr(hooks, "untested_versions", lambda: ["celery 5.9"])
    assert "not tried with celery 5.9" in finding(console, "celery")["said"]
    monkeypatch.setattr(hooks, "misfits", lambda: (hooks.Misfit(hooks.Area.REDIS, "kombu 9 has no Thing"),))
    found = finding(console, "celery")
    assert found["level"] == "warn" and "visibility timeout" in found["said"] and "kombu 5.5" in found["cure"]
    monkeypatch.setattr(hooks, "misfits", lambda: (hooks.Misfit(hooks.Area.GUARD, "celery 9 has no Thing"),))
    assert finding(console, "celery", status=1)["level"] == "FAIL"


def test_an_unreachable_Redis_is_exit_status_3_and_the_rest_is_still_checked(new_fleet: Build) -> None:
    console = Console(new_fleet("redis://:s3cret@127.0.0.1:1/0").app)
    found = levels(console, status=3)
    assert (found["reachable"], found["broker"], found["tasks"]) == ("FAIL", "FAIL", "ok")
    assert "s3cret" not in console.run("doctor", status=3).output


@pytest.mark.parametrize(
    ("options", "check", "level", "said"),
    [
        ({"maxmemory": "1", "maxmemory-policy": "noeviction"}, "writable", "FAIL", "out of memory"),
        ({"maxmemory": "1", "maxmemory-policy": "noeviction"}, "memory", "warn", "used of"),
        ({"maxmemory-policy": "allkeys-lru"}, "eviction", "FAIL", "throw away"),
        ({"maxmemory-policy": "volatile-ttl"}, "eviction", "warn", "forget"),
        ({"save": ""}, "persistence", "warn", "none"),
        ({"save": "60 1000"}, "persistence", "warn", "snapshots"),
    ],
)
def test_a_misconfigured_Redis_is_found(
    options: dict[str, str],
    check: str,
    level: str,
    said: str,
    new_fleet: Build,
    new_server: NewServer,
    redis_url: str,
) -> None:
    server = new_server(**options)
    fleet = new_fleet(redis_url, poison_redis_url=server.url())
    found = finding(Console(fleet.app), check, status=1 if "FAIL" in level or check == "memory" else 0)
    assert found["level"] == level
    assert said in found["said"]
    assert found["cure"]


def test_a_replica_is_found(
    new_fleet: Build, new_server: NewServer, redis_server: RedisServer, redis_url: str
) -> None:
    redis_server.client().config_set("repl-diskless-sync-delay", 0)
    replica = new_server(replicaof=f"127.0.0.1 {redis_server.port}", databases=10_000)
    wait_until(lambda: replica.client().info("replication")["master_link_status"] == "up")
    console = Console(new_fleet(redis_url, poison_redis_url=replica.url()).app)
    found = levels(console, status=1)
    assert (found["role"], found["writable"], found["permissions"]) == ("FAIL", "FAIL", "ok")
    assert str(redis_server.port) in finding(console, "role", status=1)["cure"]


@pytest.mark.parametrize(
    ("rules", "missing"),
    [
        ("-eval -evalsha -script", "EVAL, SCRIPT LOAD, EVALSHA"),
        ("-xadd", "XADD"),
        ("-client", "CLIENT REPLY"),
        ("-multi -exec", "MULTI EXEC"),
        ("-hset -zadd", "HSET, ZADD"),
    ],
)
def test_missing_permissions_are_named_with_the_rule_that_grants_them(
    rules: str, missing: str, new_fleet: Build, new_server: NewServer, redis_url: str
) -> None:
    server = new_server()
    server.client().execute_command(
        "ACL", "SETUSER", "limited", "on", ">pw", "~*", "&*", "+@all", *rules.split()
    )
    url = server.url().replace("redis://", "redis://limited:pw@")
    found = finding(Console(new_fleet(redis_url, poison_redis_url=url).app), "permissions", status=1)
    assert found["said"] == f"not allowed: {missing}"
    assert all(rule.replace("-", "+").split("|")[0] in found["cure"] for rule in rules.split())


def test_a_user_of_the_namespace_alone_passes(
    new_fleet: Build, new_server: NewServer, redis_url: str
) -> None:
    server = new_server()
    server.client().execute_command(
        "ACL",
        "SETUSER",
        "limited",
        "on",
        ">pw",
        "~{poison}:*",
        "+@all",
        "-@dangerous",
        "+info",
        "+client|reply",
    )
    url = server.url().replace("redis://", "redis://limited:pw@")
    found = levels(Console(new_fleet(redis_url, poison_redis_url=url).app))
    assert "FAIL" not in found.values()


@pytest.mark.parametrize(
    ("rules", "how"),
    [
        ("resetchannels +@all", "heartbeat"),
        ("&* +@all -subscribe", "heartbeat"),
        ("&* +@all -pubsub", "heartbeat"),
        ("&* +@all -publish", "next look"),
    ],
)
def test_a_user_who_may_not_be_seen_alive_is_told_how_late_a_death_is_noticed(
    rules: str, how: str, new_fleet: Build, new_server: NewServer, redis_url: str
) -> None:
    server = new_server()
    server.client().execute_command("ACL", "SETUSER", "limited", "on", ">pw", "~*", *rules.split())
    url = server.url().replace("redis://", "redis://limited:pw@")
    console = Console(new_fleet(redis_url, poison_redis_url=url).app)
    found = finding(console, "presence")
    assert (found["level"], how in found["said"]) == ("warn", True)
    rule = found["cure"].removeprefix("ACL SETUSER <user> ").split()
    server.client().execute_command("ACL", "SETUSER", "limited", *rule)
    assert finding(console, "presence")["level"] == "ok"


def test_a_user_without_INFO_is_warned_instead_of_stopped(
    new_fleet: Build, new_server: NewServer, redis_url: str
) -> None:
    server = new_server()
    server.client().execute_command("ACL", "SETUSER", "limited", "on", ">pw", "~*", "+@all", "-info")
    url = server.url().replace("redis://", "redis://limited:pw@")
    found = levels(Console(new_fleet(redis_url, poison_redis_url=url).app))
    assert found["redis"] == "warn"
    assert found["permissions"] == "ok"


@pytest.mark.parametrize(
    ("info", "level", "said"),
    [
        ({"redis_version": "6.0.16"}, "FAIL", "Redis 6.0.16 is too old"),
        ({"redis_version": "6.2.0"}, "ok", "Redis 6.2.0"),
        ({"redis_version": "10.0.1"}, "ok", "Redis 10.0.1"),
        ({"redis_version": "7.2.4", "valkey_version": "9.1.2"}, "ok", "Valkey 9.1.2"),
        ({"redis_version": "7.4.0", "dragonfly_version": "df-v1.40.1"}, "FAIL", "Dragonfly df-v1.40.1"),
        ({"redis_version": "6.3.4", "mvcc_depth": 0}, "warn", "KeyDB 6.3.4"),
        ({"redis_version": "8.0.6", "cluster_enabled": 1}, "warn", "Redis 8.0.6 is a node of a cluster"),
        ({"redis_version": "8.0.6", "cluster_enabled": 0}, "ok", "Redis 8.0.6"),
    ],
)
def test_a_server_is_named_and_one_that_is_too_old_or_not_a_single_Redis_is_found(
    info: dict[str, Any], level: str, said: str
) -> None:
    found = server_checks._version(info)
    assert (found.level, found.said.startswith(said)) == (level, True)
    assert bool(found.cure) is (level != "ok")


def test_NEW_24_a_cluster_that_is_asked_for_as_one_is_well_from_Redis_7_on() -> None:
    info = {"redis_version": "7.2.4", "valkey_version": "9.1.2", "cluster_enabled": 1}
    assert server_checks._version(info, (7, 0)).said == "Valkey 9.1.2, a cluster"
    assert server_checks._version({"redis_version": "6.2.14"}, (7, 0)).level == "FAIL"


@pytest.mark.parametrize(
    ("found", "level", "says"),
    [
        (cluster_checks._failover({"cluster-node-timeout": "15000"}), "warn", "about 22 s"),
        (cluster_checks._failover({"cluster-node-timeout": "5000"}), "ok", "about 8 s"),
        (cluster_checks._coverage({"cluster-require-full-coverage": "yes"}), "warn", "any other master dies"),
        (cluster_checks._coverage({"cluster-require-full-coverage": "no"}), "ok", "does not depend"),
        (cluster_checks._moves({"redis_version": "8.0.6"}), "ok", "key by key"),
        (cluster_checks._moves({"redis_version": "7.2.4", "valkey_version": "9.1.2"}), "ok", "in a moment"),
        (cluster_checks._replicas({"connected_slaves": 1}), "warn", "1: after a failover"),
        (cluster_checks._replicas({"connected_slaves": 2}), "ok", "2: one is left"),
    ],
)
def test_NEW_24_what_keeps_a_ledger_on_a_cluster_away_is_said_with_its_cure(
    found: Finding, level: str, says: str
) -> None:
    assert (found.level, says in found.said) == (level, True)
    assert bool(found.cure) is (level != "ok")


@pytest.mark.parametrize("name", ["rdb_last_bgsave_status", "aof_last_write_status"])
def test_a_server_that_could_not_write_to_its_disk_is_found(name: str, redis_server: RedisServer) -> None:
    found = server_checks._persistence(redis_server.client(), {name: "err"})
    assert found.level == "FAIL" and name in found.said and "disk full" in found.cure


def test_the_ledger_of_another_app_is_found(console: Console, keeper: Keeper, fleet: Fleet) -> None:
    fleet.app.main = "another"
    assert finding(console, "owner", status=1)["level"] == "FAIL"


@pytest.mark.parametrize("backend", ["", "cache+memory://", "db+sqlite://"])
def test_a_result_backend_that_is_missing_or_of_one_process_is_a_warning(backend: str, fleet: Fleet) -> None:
    from tests.apps.factory import build_app

    app = build_app(fleet.environ() | {"RESULT_BACKEND": backend})
    assert finding(Console(app), "results")["level"] == "warn"
    app.close()


def test_a_wrong_setting_is_found_with_its_name_value_and_the_right_one(
    new_fleet: Build, redis_url: str
) -> None:
    console = Console(new_fleet(redis_url, poison_max_crash=3).app)
    found = finding(console, "settings", status=1)
    assert found["said"] == "unknown setting poison_max_crash=3: did you mean poison_max_crashes?"


def test_EMS_10_what_Redis_cannot_promise_fails_with_sync_and_is_only_told_without(
    new_fleet: Build, new_server: NewServer
) -> None:
    url = new_server().url()
    found = finding(Console(new_fleet(url, poison_durability="sync").app), "durability", status=1)
    assert found["level"] == "FAIL"
    assert "appendonly no" in found["said"] and "appendfsync always" in found["cure"]
    found = finding(Console(new_fleet(url).app), "durability")
    assert (found["level"], found["cure"]) == ("ok", "")
    assert found["said"].startswith("process: ") and "sync" not in found["said"]


@pytest.mark.parametrize(
    ("durability", "said"), [("sync", "sync: "), ("process", "process; sync is possible: ")]
)
def test_EMS_10_what_Redis_can_promise_is_told(
    durability: str, said: str, new_fleet: Build, new_server: NewServer
) -> None:
    url = new_server(appendonly="yes", appendfsync="always").url()
    found = finding(Console(new_fleet(url, poison_durability=durability).app), "durability")
    assert found["level"] == "ok"
    assert found["said"].startswith(f"{said}on disk")


def test_no_Redis_anywhere_is_said_with_the_setting_that_helps(new_fleet: Build) -> None:
    fleet = new_fleet("memory://", poison_redis_url=None, result_backend=None)
    assert "set poison_redis_url" in finding(Console(fleet.app), "settings", status=1)["said"]


@pytest.mark.parametrize("url", ["amqp://guest:s3cret@127.0.0.1:1//", "redis://:s3cret@127.0.0.1:1/0"])
def test_a_broker_that_is_away_is_found_quickly(url: str, new_fleet: Build, redis_url: str) -> None:
    fleet = new_fleet(url, poison_redis_url=redis_url)
    found = finding(Console(fleet.app), "broker", status=1)
    assert found["level"] == "FAIL"
    assert "s3cret" not in found["said"]


@pytest.mark.parametrize("verb", ["list", "doctor"])
def test_a_broker_that_nobody_knows_is_named(verb: str, new_fleet: Build, redis_url: str) -> None:
    fleet = new_fleet(redis_url, poison_redis_url=redis_url)
    keeper = Keeper(fleet.app)
    keeper.sign()
    keeper.close()
    fleet.app.conf.broker_url = "carrier-pigeon://"
    result = Console(fleet.app).run(verb, status=1 if verb == "doctor" else 2)
    assert "carrier-pigeon" in result.output


@pytest.mark.parametrize("broker_url", ["rabbitmq"], indirect=True)
def test_a_broker_that_refuses_the_password_is_found(broker_url: str, new_fleet: Build) -> None:
    user, _, rest = broker_url.partition("@")
    wrong = f"{user.rpartition(':')[0]}:wr0ng@{rest}"
    found = finding(Console(new_fleet(wrong).app), "broker", status=1)
    assert found["level"] == "FAIL"
    assert "wr0ng" not in found["said"]


def test_modules_that_cannot_be_loaded_are_found(console: Console, fleet: Fleet) -> None:
    fleet.app.conf.imports = ["no.such.module"]
    assert "no module named 'no'" in finding(console, "tasks", status=1)["said"].lower()


def test_a_result_backend_that_nobody_knows_is_found(new_fleet: Build, redis_url: str) -> None:
    console = Console(new_fleet(redis_url, result_backend="carrier-pigeon://").app)
    assert "carrier-pigeon" in finding(console, "results", status=1)["said"]


def test_a_transport_that_is_neither_Redis_nor_RabbitMQ_is_a_warning(
    new_fleet: Build, redis_url: str
) -> None:
    fleet = new_fleet("memory://", poison_redis_url=redis_url)
    assert finding(Console(fleet.app), "broker")["level"] == "warn"


def test_a_test_notification_is_sent_where_it_is_asked_for_and_who_refuses_it_is_named(
    new_fleet: Build, redis_url: str
) -> None:
    with Inbox() as inbox:
        fleet = new_fleet(redis_url, poison_notify=[inbox.url, ["/no/such/pager"], "event"])
        console = Console(fleet.app)
        assert "notify" not in levels(console) and not inbox.told
        findings = console.json("doctor", "--notify", status=1)
    taken, refused = (found for found in findings if found["check"] == "notify")
    assert (taken["level"], taken["said"]) == ("ok", "http://127.0.0.1 took a test")
    assert [told["kind"] for told in inbox.told] == ["test"]
    assert refused["level"] == "FAIL" and refused["said"].startswith("/no/such/pager: No such file")
    assert SECRET not in str(findings)


def test_NEW_1_a_trial_queue_that_nobody_serves_is_told_by_doctor_and_status(
    new_fleet: Build, redis_url: str
) -> None:
    fleet = new_fleet(redis_url, poison_trial="queue", poison_trial_queue="court")
    console = Console(fleet.app)
    found = finding(console, "trials")
    assert (found["level"], found["cure"]) == ("warn", "start `celery -A proj worker -Q court -c 1`")
    assert "no live worker consumes 'court'" in console.out("status")
    ledger = plugin_of(fleet.app).open_ledger()
    for name, queues in (("w1", "celery"), ("w2", "celery,courtyard"), ("w3", "court")):
        assert finding(console, "trials")["level"] == "warn"
        ledger.fleet.beat(f"{name}@test/1", {"queues": queues, "stopping": 0})
    assert finding(console, "trials")["level"] == "ok"
    ledger.fleet.beat("w3@test/1", {"queues": "court", "stopping": 0})  # it is still alive when status looks
    assert "court" not in console.out("status")


def test_a_delivery_limit_that_drops_a_poison_before_its_last_death_is_told_with_the_cure() -> None:
    limits = {"two": 2, "three": 3, "endless": -1, "none": None}
    queues = [Queue(name, queue_arguments={"x-delivery-limit": limit}) for name, limit in limits.items()]
    app = Celery("limits", broker="memory://", set_as_current=False, task_queues=[*queues, Queue("plain")])
    app.conf.poison_redis_url = "redis://localhost"
    (told,) = _check_queues(plugin_of(app))
    assert told.said.startswith("two: x-delivery-limit=2: RabbitMQ drops what 2 deaths would quarantine")
    assert "well above 2" in told.cure
    app.close()
