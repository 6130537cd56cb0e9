"""From the history back into the workers: block rules that never hurt an innocent (NEW-7).

What the command does with them is in ``celery_poison.cli.pipeline_publish``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from celery_poison.extensions.proposals.proposal import ProposedRule
from celery_poison.ledger import Ledger
from celery_poison.pipeline.replay import DEFAULTS, InForce, Policy, PolicyCost
from celery_poison.policy import OVERRIDABLE
from celery_poison.rules.blocks import is_fingerprint

if TYPE_CHECKING:
    from celery_poison.pipeline.derived import Derived

#: Without its own decision nobody needs a longer list: workers hold each rule.
MOST_RULES = 500
#: The policy of the back-test that blocks soonest says what a rule would have caught.
SOONEST: Policy = {"block_fingerprint_after": 1}
_COUNTED = (
    'healthy runs of {} were only counted (poison_journal="incidents"): the lake lacks the messages that'
    ' ended alive. Set poison_journal="attempts" on every worker, let a history grow, then delete the counts:'
    " redis-cli DEL NAMESPACE:tally"
)
_NONE_ALIVE = (
    "no run in the lake ended alive, so no rule is known to spare the innocent: was"
    ' poison_journal="incidents" set, or was the lake begun just now? Set it to "attempts", and let a history'
    " grow"
)


def refusals(
    ledger: Ledger, derived: Derived, oldest: timedelta, accept_missing: bool = False
) -> Iterator[str]:
    """Return why nothing may be proposed, each with its cure; nothing: it may.

    A rule says that no message of a fingerprint ever ended alive. That cannot be known where runs that ended
    alive are not written down, or are missing, or came after the tables were made.

    Args:
        oldest: by how much the tables may be behind the journal.
        accept_missing: a person has looked at what is missing.
    """
    from celery_poison.pipeline.blame import RUNS_ALIVE

    client: Any = ledger.client
    counted = sorted(name.decode(errors="replace") for name in client.hkeys(ledger.keys.tally))
    if counted:
        names = ", ".join(counted[:5]) + (", …" if len(counted) > 5 else "")
        yield _COUNTED.format(names)
    elif not derived.ask(RUNS_ALIVE)["n"][0].as_py():
        yield _NONE_ALIVE
    newest = client.xrevrange(ledger.keys.journal, count=1)
    # A fleet that does nothing has no newer entry, and its tables do not grow old.
    seconds = int(newest[0][0].split(b"-")[0]) / 1000 if newest else datetime.now(UTC).timestamp()
    now = datetime.fromtimestamp(seconds, UTC)
    if derived.as_of.at is None:
        yield "the lake is empty: run `celery poison pipeline all` first"
    elif (behind := now - derived.as_of.at) > oldest:
        whose = "the journal in Redis" if newest else "the clock (the journal in Redis is empty)"
        yield (
            f"the tables end {behind / timedelta(hours=1):.0f} hours before {whose}, more than --max-age"
            f" {oldest / timedelta(hours=1):g}: run `celery poison pipeline all` first"
        )
    for sentence in () if accept_missing else derived.left_out:
        yield (
            f"{sentence}. A message that would be blocked may have ended alive there. Look at it with `celery"
            " poison pipeline check`; then --accept-missing with a --note goes on without it"
        )


def proposals(
    fingerprints: Iterable[Mapping[str, Any]], outcomes: Sequence[PolicyCost], least: int = 2
) -> list[ProposedRule]:
    """Return the rules that history supports, those that would have spared most first.

    Never one for a fingerprint of which a single message ever ended alive or was cleared by a trial, nor one
    that kept an innocent from running under any policy of the back-test. A message counts that died again
    when it was tried alone.

    Args:
        fingerprints: rows of that table, as mappings.
        least: how many different messages must have been proven guilty.
    """
    wrong = {fingerprint for told in outcomes for fingerprint in told.wrong_blocks}
    caught = next((told.caught for told in outcomes if told.policy == SOONEST), Counter[str]())
    sure = [
        row
        for row in fingerprints
        if row["guilty_messages"] >= least
        and not (row["alive"] or row["cleared"] or row["fingerprint"] in wrong)
        and is_fingerprint(row["fingerprint"])
    ]
    sure.sort(key=lambda row: (-row["deaths"], row["fingerprint"]))
    words = "pipeline: {deaths} deaths by {guilty_messages} messages, none ever ended alive"
    return [
        ProposedRule(
            fingerprint=row["fingerprint"],
            task=row["task"] or "",
            note=words.format(**row),
            deaths=row["deaths"],
            messages=row["guilty_messages"],
            caught=caught[row["fingerprint"]],
        )
        for row in sure[:MOST_RULES]
    ]


def policy_of(best: PolicyCost, now: InForce = DEFAULTS) -> dict[str, Any]:
    """Return what can be set at run time of a recommended policy, where it is not as it is ``now``.

    To block by fingerprint is none of it where that kept an innocent from running.
    """
    left_out = {"block_fingerprint_after"} if best.wrong_blocks else set()
    return {
        name: value
        for name, value in best.policy.items()
        if name in OVERRIDABLE and name not in left_out and value != getattr(now, name)
    }
