"""The core names no extension: what is an extension's own stands in its room."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

import celery_poison

PACKAGE = Path(celery_poison.__file__).parent
#: They play all there is, or hand it on.
OUTSIDE = ("extensions", "pipeline", "testing", "demo", "contrib")
#: By which an extension is known in names of the code; where its own name is a word of English, other words.
WORDS = {
    "outbox": "outbox",
    "once": "idempotency",
    "limits": "limiting|discarder",  # `max_messages` is the quarantine's, too
    "error_transactions": "error_transactions?|on_(rollback|quarantine|discard|send_failed)|owed",
    "notify": "notifier|notified|notifications?",
    "proposals": "proposals?",
    "holds": "suspend|suspension",
    "by_value": "by_value|value_holds?",
    "deploy_guard": "deploy_guard|first_runs",
    "black_box": "black_box|grew_[a-z]+|growth",
    "items": "items?_(key|is)|progress_of",
    "telling": "(?<!_)telling",
    "repro": "repro",
    "rollout": "rollout",
    "cost": "costs?",
}
#: What is left. This list may only become shorter.
LEFT = {
    "cli/pipeline.py": "notify",
    "cli/pipeline_publish.py": "proposals",
    "guard.py": "error_transactions once outbox",  # the signature for type checkers
    "ledger/keys.py": "outbox",  # what is tied to an end leaves in one step with it
    "outbox.py": "outbox",  # users import it by this name
    "rules/reports.py": "outbox",  # a field of a public report
}


def test_the_core_names_no_extension_but_where_it_is_listed() -> None:
    named = {path.relative_to(PACKAGE).as_posix(): _named_in(path) for path in PACKAGE.rglob("*.py")}
    core = {place: found for place, found in named.items() if place.partition("/")[0] not in OUTSIDE}
    assert {place: found for place, found in core.items() if found} == LEFT


def _named_in(path: Path) -> str:
    """Return the extensions that the code of a file names; comments and texts may."""
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)
    names = {token.string for token in tokens if token.type == tokenize.NAME}
    return " ".join(
        room
        for room, words in sorted(WORDS.items())
        if any(re.search(rf"(?:^|_)(?:{words})(?:_|$)", name) for name in names)
    )
