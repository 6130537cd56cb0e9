"""What is blocked, as this worker knows it, and which messages that concerns (NEW-3).

The list is read once in each heartbeat interval, and only if it has changed. A message costs nothing
while no rule is about its task; then it costs one fingerprint, and still no question to Redis.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from celery import Celery
from celery.utils.log import get_logger

from celery_poison.basics.parts import Caught, Hold
from celery_poison.errors import ConfigurationError, LedgerUnavailable
from celery_poison.keep.arguments import (
    arguments_of,
    fingerprint_of,
    hash_of,
    is_readable,
    same_calls,
)
from celery_poison.ledger import Ledger, policies
from celery_poison.ledger.policies import VersionedCopy
from celery_poison.policy import Policy
from celery_poison.rules.blocks import Rule, RuleKind, read_rules
from celery_poison.worker.plans import Plans
from celery_poison.worker.recorder import Recorder
from celery_poison.worker.threads import call_in_real_thread

logger = get_logger("celery_poison")

#: Seconds that a user's function may take; a function that needs longer is not asked again.
PATIENCE = 1.0


class Fingerprints:
    """Computes the fingerprints of one worker.

    Where a function fails, all arguments count: that is the same in every worker, and never takes one
    message for another.
    """

    def __init__(self, app: Celery, complain: Callable[[Exception], None]) -> None:
        self._app = app
        self._complain = complain
        self._hung: set[str] = set()

    def asks(self, message: Any, task: str, function: Callable[..., Any] | None) -> bool:
        """Whether the user's function has a say in the fingerprint of this message."""
        return function is not None and task not in self._hung and is_readable(message)

    def of(self, message: Any, task: str, secret: bytes, function: Callable[..., Any] | None) -> str:
        """Return the fingerprint of a message; raises nothing that ``function`` does."""
        if self.asks(message, task, function):
            try:
                return call_in_real_thread(partial(fingerprint_of, message, task, secret, function), PATIENCE)
            except TimeoutError:
                self._hung.add(task)
                self._complain(_broken(task, f"took longer than {PATIENCE:g} s and is not asked again"))
            except Exception as error:
                self._complain(_broken(task, f"failed: {error!r}"))
        return fingerprint_of(message, task, secret)

    def of_same_calls(self, message: Any, task: str, secret: bytes) -> Iterator[str]:
        """Yield the fingerprints of the same call in other words; of a packed body once that is open."""
        is_packed = not is_readable(message)
        if message.content_type != "application/json" or getattr(message, "sealed", is_packed):
            return
        if (arguments := arguments_of(message.body)) is None:
            return
        if is_packed:
            yield hash_of(secret, task, b"", arguments)
        for call in same_calls(self._app.tasks[task].run, arguments):
            with suppress(TypeError, ValueError):  # a default that is no JSON
                yield hash_of(secret, task, b"", call)


def _broken(task: str, what: str) -> ConfigurationError:
    return ConfigurationError(f"all arguments count, since the fingerprint function of {task} {what}")


class _Rules(NamedTuple):
    """The list of one version; replaced as a whole, since the event loop reads what another thread brings.

    Attributes:
        by_field: ``kind:name`` -> the rule, and when it is over by this process's clock.
        whose: tasks of which some fingerprint is blocked; the empty string: of any.
    """

    version: int = 0
    by_field: Mapping[str, tuple[Rule, float | None]] = {}
    whose: frozenset[str] = frozenset()


@dataclass(eq=False, repr=False)
class Checker:
    """The local copy of the block list, and what holds messages against it.

    Args:
        recorder: knows the key of fingerprints.
        holds: look into messages, too.
    """

    ledger: Ledger
    fingerprints: Fingerprints
    recorder: Recorder
    complain: Callable[[Exception], None]
    plans: Plans
    holds: Sequence[Hold] = ()
    _rules = _Rules()

    def __post_init__(self) -> None:
        key = self.ledger.keys.blocks
        self._copy: VersionedCopy[Rule] = VersionedCopy(self.ledger, key, read_rules, self.complain)

    def refresh(self) -> bool:
        """Take over what has changed in the ledger; return whether anything had.

        Raises:
            LedgerUnavailable: Redis is away; the rules in force stay.
        """
        began, ended = self._copy.refresh()
        if self._copy.version == self._rules.version:
            return False
        rules, offset = self._copy.by_field, time.monotonic() - self._copy.at
        self._rules = _Rules(
            self._copy.version,
            {field: (rule, rule.until and rule.until + offset) for field, rule in rules.items()},
            frozenset(rule.task for rule in rules.values() if rule.kind is RuleKind.FINGERPRINT),
        )
        self.plans.renew()
        for rule in began.values():
            logger.warning("celery_poison: %s", rule.reason)
        for field in ended:
            logger.warning("celery_poison: %s is not blocked any more", field.replace(":", " ", 1))
        return True

    def concerns(self, task: str) -> bool:
        """Whether some rule may be about messages of this task."""
        rules = self._rules
        if not rules.by_field:
            return False
        return self._goes_by_fingerprint(task) or policies.block_field(RuleKind.TASK, task) in rules.by_field

    def _goes_by_fingerprint(self, task: str) -> bool:
        whose = self._rules.whose
        return task in whose or "" in whose

    def _find(self, kind: RuleKind, name: str) -> Rule | None:
        """Return the rule of that name, if it is in force."""
        rule, over = self._rules.by_field.get(policies.block_field(kind, name), (None, None))
        return None if over is not None and time.monotonic() >= over else rule

    def must_ask(self, message: Any, task: str, policy: Policy) -> bool:
        """Whether only the user's own function can tell: it must run under an admit mark."""
        return self._goes_by_fingerprint(task) and self.fingerprints.asks(message, task, policy.fingerprint)

    def reason(self, message: Any, task: str, policy: Policy, *, ask: bool) -> str:
        """Return the rule that ``message`` falls under, as a sentence, or the empty string; never raises.

        Args:
            ask: whether the user's function may be asked, if only that can tell.
        """
        if not getattr(message, "sealed", False):  # else it is looked at again once it is open
            message.checked_against = self._rules.version
        try:
            rule = self._rule(message, task, policy, ask=ask)
        except Exception as error:
            self.complain(error)
            return ""
        return rule.reason if rule else ""

    def _rule(self, message: Any, task: str, policy: Policy, *, ask: bool) -> Rule | None:
        rule = self._find(RuleKind.TASK, task)
        if rule is not None or not self._goes_by_fingerprint(task):
            return rule
        if not ask and self.must_ask(message, task, policy):
            return None
        secret = self.recorder.secret
        found = iter([self.fingerprints.of(message, task, secret, policy.fingerprint)])
        if policy.fingerprint is None:
            found = chain(found, self.fingerprints.of_same_calls(message, task, secret))
        rules = (self._find(RuleKind.FINGERPRINT, fingerprint) for fingerprint in found)
        return next((rule for rule in rules if rule is not None and rule.task in ("", task)), None)

    def looks_into(self, task: str) -> bool:
        """Whether a hold looks at what messages of this task are about."""
        return any(hold.looks_into(task) for hold in self.holds)

    def catch(self, message: Any, task: str, *, as_of_now: bool = False) -> Caught | None:
        """Return why a hold keeps a message from beginning; None: none does, or it cannot tell.

        Raises:
            LedgerUnavailable: ``as_of_now``, and Redis is away.
        """
        for hold in self.holds:
            try:
                if hold.looks_into(task) and (caught := hold.catch(message, task, as_of_now=as_of_now)):
                    return caught
            except LedgerUnavailable:
                raise
            except Exception as error:
                self.complain(error)
        return None

    def let_go(self, message: Any) -> None:
        """Let a message begin that was caught, and that the ledger cannot take."""
        for hold in self.holds:
            hold.let_go(message)

    def on_its_way_to_the_pool(self, message: Any, task: str, policy: Policy) -> str:
        """The same for a message that may have waited in this worker while its kind was blocked."""
        if getattr(message, "checked_against", None) == self._rules.version:
            return ""
        return self.reason(message, task, policy, ask=False)
