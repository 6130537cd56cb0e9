"""The deploy guard (NEW-18): the first runs of each task under a new version go one at a time to a cell.

``first_runs`` decides, ``record`` keeps that in the ledger, ``guarding`` obeys in a worker, ``watching`` is
what the active monitor does. A pause is one of ``extensions.holds``, for one version alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from celery_poison.basics.parts import Hold, Panel, Round
from celery_poison.basics.text import argument
from celery_poison.decide import End, EndedRun
from celery_poison.errors import ConfigurationError
from celery_poison.extension import Extension
from celery_poison.extensions.deploy_guard.settings import DeployGuardSettings
from celery_poison.ledger import Ledger
from celery_poison.settings import Settings

if TYPE_CHECKING:
    from celery_poison.extensions.deploy_guard.guarding import Guarding
    from celery_poison.extensions.deploy_guard.watching import FirstRunsWatch


def why_off(settings: Settings) -> str:
    """Return the reason why a guard that is wanted is off, with its cure, as a sentence; empty: none."""
    if settings.observe_only:
        return "poison_observe_only is set: nothing is held back"
    if not settings.code_version:
        return "poison_code_version is not set: let the deployment set it to a tag or a commit"
    if settings.trial != "cell":
        return f"poison_trial={settings.trial!r}: first runs need cells, set it to 'cell'"
    return ""


class DeployGuard(Extension):
    """Imports what it needs when it is needed: most apps only publish."""

    def __init__(self, host: Any) -> None:
        super().__init__(host)
        #: Of the workers in this process; their holds keep them.
        self._guards: WeakSet[Guarding] = WeakSet()

    def holds(self, site: Any) -> Iterable[Hold]:
        if not site.settings.of(DeployGuardSettings).deploy_guard:
            return
        if why := why_off(site.settings):
            site.complain(ConfigurationError(f"poison_deploy_guard is off: {why}"))
            return
        from celery_poison.extensions.deploy_guard.guarding import Guarding

        guard = Guarding(site)
        self._guards.add(guard)
        yield guard

    def ended(self, site: Any, request: Any, run: EndedRun, error: BaseException) -> None:
        if self._guards and run.end is End.DIED:
            for guard in list(self._guards):
                guard.died(request.poison_token, run, error)

    def rounds(self, ledger: Ledger, announce: Callable[..., object]) -> Iterable[Round]:
        if self._is_on:
            from celery_poison.extensions.deploy_guard.watching import PAUSE

            yield Round("poison-deploy-guard", PAUSE, self._watch(ledger).round)

    def keeps_waiting(self, ledger: Ledger) -> Callable[[str, str], bool]:
        return self._watch(ledger).keeps_waiting() if self._is_on else super().keeps_waiting(ledger)

    def panel(self, ledger: Ledger) -> Iterable[Panel]:
        if not self._is_on:
            return
        from celery_poison.extensions.deploy_guard.watching import sentence_of
        from celery_poison.extensions.holds.pauses import paused_versions

        pauses = paused_versions(ledger)
        parked = ledger.read.parked_now() if pauses else ()
        waiting = Counter(each.start.task for _, each in parked)
        yield Panel(
            "deploys",
            as_json=[{**pause.as_dict(), "waiting": waiting[pause.name]} for pause in pauses],
            decisions=[sentence_of(pause, waiting[pause.name]) for pause in pauses],
            typed=[f"poison resume --task {argument(pause.name)}" for pause in pauses],
        )

    @property
    def _is_on(self) -> bool:
        return bool(self.host.settings.of(DeployGuardSettings).deploy_guard)

    def _watch(self, ledger: Ledger) -> FirstRunsWatch:
        from celery_poison.extensions.deploy_guard.watching import FirstRunsWatch

        settings = self.host.settings
        patience = settings.of(DeployGuardSettings).deploy_guard_wait
        return ledger.companion(self, lambda: FirstRunsWatch(ledger, settings.activation_interval, patience))


#: Keys of its own in the ledger -> what names one of several, as docs/keys.md has it.
KEYS = {"first_runs": "VERSION TASK"}
EXTENSION = DeployGuard
