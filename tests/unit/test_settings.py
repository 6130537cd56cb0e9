"""Wrong settings stop the worker with a sentence that names the setting, the value and the cure."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from celery_poison import extensions
from celery_poison.errors import ConfigurationError
from celery_poison.extensions.notify.settings import NotifySettings, receivers_of
from celery_poison.extensions.outbox.settings import OutboxSettings
from celery_poison.ledger.connection import open_redis
from celery_poison.plugin import plugin_of
from celery_poison.policy import Policy
from celery_poison.settings import Settings


def test_the_defaults_are_the_ones_of_the_contract() -> None:
    settings = Settings.from_conf({})
    assert settings.heartbeat_interval == 3.0
    assert settings.activation_interval == 10.0
    assert (settings.max_crashes, settings.max_failures) == (2, 5)
    assert settings.quarantine_queue == "celery.quarantine"
    assert settings.fail_open and not settings.guard_all


def test_other_settings_of_celery_are_none_of_our_business() -> None:
    assert Settings.from_conf({"task_acks_late": True, "broker_url": "redis://"}) == Settings()


@pytest.mark.parametrize("name", ["poison_max_crash", "POISON_MAX_CRASHS"])
def test_an_unknown_setting_is_refused_and_the_nearest_name_suggested(name: str) -> None:
    with pytest.raises(ConfigurationError, match="did you mean poison_max_crashes"):
        Settings.from_conf({name: 3})


def test_a_setting_of_an_extension_that_was_left_out_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extensions, "ORDER", ("outbox",))
    assert Settings.from_conf({"poison_outbox_retries": 4}).of(OutboxSettings).outbox_retries == 4
    for conf in ({"poison_notify": "event"}, {"poison_queues": {"mail": {"suspend_after_failures": 3}}}):
        with pytest.raises(ConfigurationError, match=r"unknown setting|has no option"):
            Settings.from_conf(conf)


def test_an_unknown_setting_like_no_other_lists_all_names() -> None:
    with pytest.raises(ConfigurationError, match=r"valid names are .*poison_namespace"):
        Settings.from_conf({"poison_zzzzzzzz": 3})


#: What is no address on the web, has a field in its host, a password, or a field that there is not.
_NO_LINKS = (
    *(None, "", "javascript:alert({task_id})", "ftp://x/", "//x/{task_id}", "https://", "https:///x"),
    *("https://{task}.example.com/", "https://x{task_id}/", "{task_id}", "https://{{x}}/"),
    *("https://ann:s3cret@x/{task_id}", "https://x/ {task_id}", "https://x/\u202e", "https://x/\n"),
    *("https://x/{taskid}", "https://x/{}", "https://x/{0}", "https://x/{task_id.x}", "https://x/{mid}"),
    *("https://x/{task_id!r}", "https://x/{task_id:>9}", "https://x/{task_id", "https://x/}"),
    "https://x/{task:{cause}}",
)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("poison_max_crashes", 0),
        ("poison_max_crashes", 2.5),
        ("poison_max_crashes", True),
        ("poison_max_crashes", None),
        ("poison_max_payload_bytes", "1k"),
        ("poison_fail_open", "yes"),
        ("poison_namespace", "a{b}"),
        ("poison_namespace", ""),
        ("poison_redis_url", "http://x"),
        ("poison_blocked_retry_timeout", -2),
        ("poison_journal", "everything"),
        ("poison_trial", "jury"),
        ("poison_fingerprint", "order_id"),
        ("poison_heartbeat_interval", 0),
        ("poison_journal_maxlen", 5),
        ("poison_exception_destination", 7),
        ("poison_notify", 7),
        ("poison_notify", [7]),
        ("poison_notify", [[]]),
        ("poison_notify", ["/usr/local/bin/page"]),
        ("poison_notify", ["slack://a b"]),
        ("poison_notify", ["mailtos://me:p[s3]@example.com"]),
        *(
            ("poison_notify", [f"{slip}://example.com/x"])
            for slip in ("htps", "httpss", "ttps", "htp", "htttp")
        ),
        ("poison_notify", ["https://["]),
        ("poison_notify", ["https:///x"]),
        ("poison_notify", ["shop.alerts.told"]),
        ("poison_notify", ["os:system; x"]),
        ("poison_notify_per_minute", 0),
        ("poison_second_person", 1),
        ("poison_links", "https://logs.example.com/?q={task_id}"),
        ("poison_links", {"": "https://logs.example.com/?q={task_id}"}),
        *(("poison_links", {"Logs": url}) for url in _NO_LINKS),
    ],
)
def test_an_impossible_value_is_refused_with_setting_and_cure(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=rf"{name}=.*use "):
        Settings.from_conf({name: value})


def test_whoever_may_be_told_is_written_as_the_how_to_says() -> None:
    every = ["https://hooks.example.com/T0/x?y=z", ["/bin/page", "-x"], "shop.alerts:told", "event"]
    for value in (None, "event", [], every, tuple(every)):
        assert Settings.from_conf({"poison_notify": value}).of(NotifySettings).notify == value
    assert receivers_of("event") == ["event"] and receivers_of(None) == []
    with pytest.raises(ConfigurationError) as refused:
        Settings.from_conf({"poison_notify": ["https://hooks.example.com/s3cret", 7]})
    assert "s3cret" not in str(refused.value)


def test_a_refused_url_is_never_shown_because_it_may_hold_a_password() -> None:
    with pytest.raises(ConfigurationError) as refused:
        Settings.from_conf({"poison_redis_url": "http://user:secret@host"})
    assert "secret" not in str(refused.value)


def test_EMS_1_an_activation_interval_below_twice_the_heartbeat_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least twice"):
        Settings.from_conf({"poison_heartbeat_interval": 3, "poison_activation_interval": 5.9})
    Settings.from_conf({"poison_heartbeat_interval": 3, "poison_activation_interval": 6})


def test_overrides_win_over_the_configuration_and_are_checked_too() -> None:
    assert Settings.from_conf({"poison_max_crashes": 3}, {"poison_max_crashes": 4}).max_crashes == 4
    with pytest.raises(ConfigurationError):
        Settings.from_conf({}, {"poison_max_crashes": 0})


def test_MSG_1_a_queue_may_have_a_limit_and_a_behaviour_of_its_own() -> None:
    Settings.from_conf(
        {"poison_queues": {"mail": {"max_messages": 5, "max_messages_behavior": "discard_old"}}}
    )
    with pytest.raises(ConfigurationError, match=r"queue 'mail'.*max_messages=0"):
        Settings.from_conf({"poison_queues": {"mail": {"max_messages": 0}}})


def test_suspects_may_be_tried_in_a_queue_of_their_own_whose_name_can_be_chosen() -> None:
    settings = Settings.from_conf({"poison_trial": "queue", "poison_trial_queue": "court"})
    assert (settings.trial, settings.trial_queue) == ("queue", "court")
    with pytest.raises(ConfigurationError, match=r"poison_trial_queue='two words'.*use a name"):
        Settings.from_conf({"poison_trial_queue": "two words"})


def test_every_setting_has_a_sentence_and_its_default_passes_its_own_check() -> None:
    for field in Settings.by_name().values():
        assert field.metadata["doc"].endswith((".", ")"))
        assert field.metadata["check"](field.default) is None, field.name


def test_a_policy_is_the_tasks_own_options_over_the_settings() -> None:
    class Task:
        name = "shop.render"
        max_crashes = 7
        max_failures = None

    policy = Policy.of(Task(), Settings(max_failures=9))
    assert (policy.max_crashes, policy.max_failures) == (7, 9)


def test_an_impossible_task_option_names_the_task() -> None:
    class Task:
        name = "shop.render"
        max_crashes = "two"

    with pytest.raises(ConfigurationError, match=r"shop\.render.*max_crashes='two'"):
        Policy.of(Task(), Settings())


def test_settings_are_read_in_the_spelling_of_djangos_namespace_too() -> None:
    class DjangoSettings:
        CELERY_POISON_MAX_CRASHES = 4
        CELERY_POISON_GUARD_ALL = True
        CELERY_TASK_ACKS_LATE = True

    app = Celery("django", set_as_current=False)
    app.config_from_object(DjangoSettings(), namespace="CELERY")
    plugin = plugin_of(app)
    assert plugin.settings.max_crashes == 4
    assert plugin.settings.guard_all and plugin.wants_everything


def test_a_wrong_name_is_refused_in_djangos_spelling_too() -> None:
    class DjangoSettings:
        CELERY_POISON_MAX_CRASHS = 4

    app = Celery("django", set_as_current=False)
    app.config_from_object(DjangoSettings(), namespace="CELERY")
    with pytest.raises(ConfigurationError, match="did you mean poison_max_crashes"):
        _ = plugin_of(app).settings


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://a:1/2;redis://b:2/3", {"host": "a", "port": 1, "db": 2}),
        ("rediss://a:1/2?ssl_cert_reqs=CERT_REQUIRED", {"host": "a", "ssl_cert_reqs": "required"}),
        ("rediss://a:1/2?ssl_cert_reqs=none", {"ssl_cert_reqs": "none"}),
        ("redis+socket:///run/redis.sock?virtual_host=4", {"path": "/run/redis.sock", "db": 4}),
    ],
)
def test_a_ledger_url_may_be_spelt_as_celery_spells_its_broker(url: str, expected: dict[str, Any]) -> None:
    found = open_redis(url).connection_pool.connection_kwargs
    assert expected.items() <= found.items()


@pytest.mark.parametrize(
    ("url", "spoken"),
    [("valkey://:pw@a:1/2", "redis://:pw@a:1/2"), ("valkeys://a:1/2", "rediss://a:1/2")],
)
def test_a_valkey_is_spoken_to_as_a_redis(url: str, spoken: str) -> None:
    app = Celery("valkey", broker="memory://", set_as_current=False)
    app.conf.poison_redis_url = url
    assert plugin_of(app).ledger_url == spoken
    assert plugin_of(app).open_ledger().client.connection_pool.connection_kwargs["port"] == 1
