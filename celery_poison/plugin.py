"""The plugin on one app: its settings, the policies of its tasks, and what it has Celery load."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from threading import Lock
from typing import Any
from weakref import WeakSet

from celery import Celery
from celery.signals import before_task_publish
from celery.utils.log import get_logger

from celery_poison import headers as names
from celery_poison.basics.calling import first, tell
from celery_poison.basics.logs import keep_to_one_line, name_once
from celery_poison.broker.capture import Sink, capture
from celery_poison.errors import ConfigurationError, NoLedger
from celery_poison.extension import Extensions
from celery_poison.ledger import Keys, Ledger, policies
from celery_poison.ledger.connection import bound, open_redis
from celery_poison.ledger.credentials import with_login, with_provider
from celery_poison.ledger.tls import with_tls
from celery_poison.model import FIRST, Attempt
from celery_poison.policy import Overrides, Policy, policy_of
from celery_poison.rules.values import REDIS_SCHEMES
from celery_poison.settings import PREFIX, Settings
from celery_poison.upstream.acks import GuardedTask, acknowledge_late

logger = get_logger("celery_poison")
keep_to_one_line(logger)
name_once(logger)

#: How the names of tasks of our own begin, and those of Celery's own.
OURS = "celery_poison."
BUILT_IN = (OURS, "celery.")


def _warn(error: Exception) -> None:
    logger.warning("celery_poison: %s", error)


#: Every plugin of this process; the plugin itself lives and dies with its app.
_plugins: WeakSet[Plugin] = WeakSet()


class Plugin:
    """celery_poison on one app. Use :func:`plugin_of` to get at it."""

    def __init__(self, app: Celery) -> None:
        self.app = app
        self.overrides: dict[str, Any] = {}
        self._settings: Settings | None = None
        self._ledger_url: str | None = None
        #: What was overridden in Redis at run time, as of the last look.
        self.policy_overrides = Overrides()
        self._ignored_version = -1
        self._overriding = Lock()
        #: Takes what is wrong at run time; the worker counts it.
        self.complain: Callable[[Exception], object] = _warn

    def complain_to(self, complain: Callable[[Exception], object] | None) -> None:
        """Have a worker of this process count what is wrong; None: there is none any more."""
        self.complain = complain or _warn

    @cached_property
    def extensions(self) -> Extensions:
        """The hooks of all extensions, bound at the first use."""
        return Extensions.of(self)

    @property
    def settings(self) -> Settings:
        """The validated settings; read from the app's configuration at the first use.

        Raises:
            ConfigurationError: see :meth:`Settings.from_conf`.
        """
        if self._settings is None:
            self._settings = Settings.from_conf(_poison_settings(self.app.conf), self.overrides)
        return self._settings

    def override(self, overrides: Mapping[str, Any]) -> None:
        self.overrides.update(overrides)
        self._settings = self._ledger_url = None

    @property
    def keys(self) -> Keys:
        return Keys(self.settings.namespace, self.settings.quarantine_queue)

    @property
    def ledger_url(self) -> str:
        """Where the ledger lives, and how to speak TLS to it if that is Celery's Redis; found out once.

        Raises:
            NoLedger: nothing was set and neither broker nor result backend is Redis.
        """
        conf = self.app.conf
        candidates: tuple[tuple[Any, Callable[[str], str]], ...] = (
            (self.settings.redis_url, str),
            (conf.broker_write_url, lambda url: with_tls(url, self.app.connection_for_write().ssl)),
            (conf.result_backend, self._as_result_backend),
        )
        for url, complete in () if self._ledger_url else candidates:
            first = url[0] if isinstance(url, (list, tuple)) and url else url
            if isinstance(first, str) and first.startswith(REDIS_SCHEMES):
                self._ledger_url = complete(re.sub("^valkey", "redis", first))
                break
        if self._ledger_url is None:
            raise NoLedger(
                "poison_redis_url is not set, and neither the broker nor the result backend is Redis:"
                " set poison_redis_url='redis://...'"
            )
        return self._ledger_url

    def _as_result_backend(self, url: str) -> str:
        """Return the URL of the result backend with what Celery reads from other settings for it."""
        conf = self.app.conf
        url = with_login(url, conf.get("redis_username"), conf.get("redis_password"))
        url = with_provider(url, conf.get("redis_backend_credential_provider"))
        return with_tls(url, conf.redis_backend_use_ssl)

    def open_ledger(self) -> Ledger:
        """Return a ledger with a client of its own; nothing is connected yet."""
        options = dict(self.app.conf.broker_transport_options or {})
        client = open_redis(self.ledger_url, options, key=self.keys.prefix)
        return Ledger(client, self.keys, self.settings.journal_maxlen)

    @cached_property
    def quick_ledger(self) -> Ledger:
        """A ledger on which nothing that publishes waits longer than ``publish_timeout``."""
        ledger = self.open_ledger()
        bound(ledger.client, self.settings.publish_timeout)
        return ledger

    def taker(self, task: str, asked: bool | None) -> Sink | None:
        """Return the sink that takes messages of a task; None: they are sent.

        Args:
            asked: what ``apply_async(outbox=...)`` says.
        """
        return first(self.extensions.taking, self.complain, task, asked)

    def admit(self, producer: Any, message: Any, options: Mapping[str, Any]) -> None:
        """Ask whether a message may be sent; what a hook raises refuses it."""
        for hook in self.extensions.publishing:
            hook(producer, message, options)

    @property
    def policies(self) -> Policies:
        """Task name -> (policy, whether its messages can be diverted), of every guarded task."""
        found = Policies(self)
        for name in list(self.app.tasks):
            found.get(name)
        return found

    def refresh_policies(self, ledger: Ledger) -> bool:
        """Read the run-time overrides again if they changed; True if newer ones apply now (EMS-9).

        Raises:
            LedgerUnavailable: Redis is away; those in force stay.
        """
        read = policies.newer(ledger, ledger.keys.policy, self.policy_overrides.version)
        return read is not None and self.apply_overrides(*read[:2])

    def apply_overrides(self, version: int, overrides: Mapping[str, str | bytes]) -> bool:
        """Lay overrides (task name or ``*`` -> JSON object) over the policies; the newest version wins.

        What is not usable of them is ignored, counted and logged. Returns False, and changes nothing,
        unless ``version`` is newer than the one in force.
        """
        with self._overriding:
            current = self.policy_overrides.version
            if version <= current:
                if version < current and version != self._ignored_version:
                    self._ignored_version = version
                    self.complain(
                        ConfigurationError(
                            "Redis has older policies than those in force, which stay until the next change"
                            f" (`celery poison policy`): its version is {version}, {current} is in force"
                        )
                    )
                return False
            self.policy_overrides, complaints = Overrides.read(version, overrides)
        for complaint in complaints:
            self.complain(complaint)
        return True

    @property
    def wants_everything(self) -> bool:
        """``poison_guard_all``, unchecked: a wrong setting must stop workers, but no publisher."""
        name = "poison_guard_all"
        return bool(self.overrides.get(name, self.app.conf.get(name, False)))

    @property
    def guarded(self) -> int:
        """How many of the app's own tasks are guarded."""
        tasks = list(self.app.tasks.items())
        return sum(isinstance(task, GuardedTask) and not name.startswith(BUILT_IN) for name, task in tasks)

    def guards(self, task_name: str) -> bool:
        return isinstance(self.app._tasks.get(task_name), GuardedTask)

    def may_guard(self, task_name: str) -> bool:
        """Whether a worker may guard this task: it is guarded here, or unknown here."""
        task = self.app._tasks.get(task_name)
        if task is None or isinstance(task, GuardedTask):
            return True
        # A publisher may never finalize its app, which is when all its tasks are guarded.
        return self.wants_everything and not self.app.finalized and not task_name.startswith(BUILT_IN)

    @property
    def observed(self) -> list[str]:
        """Names of guarded tasks whose messages cannot be diverted: they acknowledge early."""
        found = self.policies.items()
        return sorted(name for name, (_, diverts) in found if not diverts and not name.startswith(BUILT_IN))

    @property
    def unguarded(self) -> list[str]:
        """Names of the tasks that are not guarded, Celery's own left out."""
        tasks = list(self.app.tasks.items())
        ours = (name for name, task in tasks if not isinstance(task, GuardedTask))
        return sorted(name for name in ours if not name.startswith("celery."))


class Policies(dict[str, tuple[Policy, bool]]):
    """Task name -> (policy, whether it diverts). Finds tasks, too, that are made while their worker runs.

    Raises:
        KeyError: no guarded task has this name.
    """

    def __init__(self, plugin: Plugin) -> None:
        super().__init__()
        self._plugin = plugin

    def __missing__(self, name: str) -> tuple[Policy, bool]:
        plugin = self._plugin
        task = plugin.app._tasks.get(name)
        if not isinstance(task, GuardedTask):
            raise KeyError(name)
        policy = policy_of(task, name, plugin.settings, plugin.policy_overrides)
        if not policy.rerun and not plugin.settings.observe_only:
            acknowledge_late(task)
        entry = self[name] = (policy, bool(task.acks_late))
        return entry

    def get(self, name: str, default: Any = None) -> Any:
        try:
            return self[name]
        except KeyError:
            return default


def _poison_settings(conf: Any) -> dict[str, Any]:
    """Return the ``poison_*`` settings, however the app spells them (``CELERY_POISON_...`` in Django)."""
    settings = {}
    for key in conf:
        head, mark, tail = str(key).lower().partition(PREFIX)
        if mark and (not head or head.endswith("_")):
            settings[PREFIX + tail] = conf.get(PREFIX + tail, conf[key])
    return settings


def plugin_of(app: Celery) -> Plugin:
    """Return the plugin of ``app``, put there if need be. ``guard.install`` guards tasks beside."""
    plugin = installed_on(app)
    if plugin is None:
        plugin = app._poison = Plugin(app)
        _plugins.add(plugin)
        app.steps["worker"].add("celery_poison.worker.bootsteps:LifeStep")
        app.steps["consumer"].add("celery_poison.worker.bootsteps:GuardStep")
        capture(app, plugin.taker, plugin.admit)
        tell(plugin.extensions.installed, plugin.complain)
    return plugin


def installed_on(app: Celery) -> Plugin | None:
    """Return the plugin of ``app``; None where it has none."""
    plugin: Plugin | None = vars(app).get("_poison")
    return plugin


def _stamp(
    sender: str | None = None,
    headers: dict[str, Any] | None = None,
    body: Any = None,
    retry_policy: dict[str, Any] | None = None,
    **_: Any,
) -> None:
    # A retry or replacement inherits the headers of the message it came from, and others hand them on: ours
    # must not leak.
    plugins = list(_plugins)
    if headers is None or not plugins:
        return
    for name in names.OURS:
        headers.pop(name, None)
    if not any(plugin.may_guard(sender or "") for plugin in plugins):
        return
    is_old = "id" not in headers and isinstance(body, dict)  # protocol 1
    fields = body if is_old else headers
    headers[names.MID] = names.new_mid(fields)
    if not fields.get("eta"):
        headers[names.SENT] = int(time.time() * 1000)
    id: Any = headers.get("id") or (body.get("id") if is_old else "")
    if id in carried:
        headers[names.FAILURES] = carried[id]
    if id in _marked_ids or attempts.get(id, FIRST).has_history:
        headers[names.MARK] = 1
    if retry_policy is not None:
        _mark_what_is_sent_again(headers, retry_policy)


def _mark_what_is_sent_again(headers: dict[str, Any], retry_policy: dict[str, Any]) -> None:
    """Have a message looked up before it runs that is published again after an error.

    The broker may have had it all the same: the confirmation was lost (TP1-8).
    """
    asked = retry_policy.get("errback")

    def mark(error: Any, interval: Any) -> Any:
        headers[names.MARK] = 1
        return asked(error, interval) if asked else None

    retry_policy["errback"] = mark


#: Attempts running in this process, by task id. Kept out of the request, whose unknown entries Celery
#: would copy into the headers of retries.
attempts: dict[str, Attempt] = {}

#: What the retries that are being sent in this process carry in their header ``poison_failures``, by task id.
carried: dict[str, str] = {}

#: Task ids whose next message must be looked up before it runs.
_marked_ids: set[str] = set()


@contextmanager
def marking(id: str) -> Iterator[None]:
    """While this is entered, messages published for the task id are marked for a look-up."""
    _marked_ids.add(id)
    try:
        yield
    finally:
        _marked_ids.discard(id)


before_task_publish.connect(_stamp, weak=False)
