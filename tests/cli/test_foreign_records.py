"""Whatever another user of Redis writes into the ledger's keys, no command ends in a traceback (NEW-5).

``POISON_FUZZ_EXAMPLES=20000``: for longer.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from celery.bin.base import CLIContext
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celery_poison.cli.celery_command import poison
from tests.apps.harness import Fleet
from tests.desk.keeping import Keeper
from tests.foreign import ID, fill, restore, write, writes

FUZZ = "POISON_FUZZ_EXAMPLES"
#: In every run the same ones.
EXAMPLES = int(os.environ.get(FUZZ, "50"))

READERS = [
    *("status", "status --json", "ready", "list", "list --json", "list --candidates", "list --state FAIL"),
    *(
        "list --filter task=fleet.*",
        "show {mid}",
        "show {mid} --json",
        "show {id}",
        "groups",
        "groups --json",
    ),
    *("workers", "workers --json", "incidents", "incidents --json", "policy get", "policy get --json"),
    *("block --list", "block --list --json", "outbox status", "outbox list", "outbox list --failed"),
    *("outbox show 1", "gate show", "journal tail", "journal tail --json", "journal export", "export {mid}"),
    *("repro {mid}", "doctor", "pause", "fail {mid} --dry-run", "release {mid} --dry-run"),
    *("discard --all --dry-run", "restore --all --dry-run", "purge --all --dry-run"),
]
ACTORS = [
    *(
        "discard {mid}",
        "fail {mid}",
        "release {mid}",
        "restore {mid}",
        "purge {mid} --yes",
        "block --like {mid}",
    ),
    *("unblock --task fleet.healthy", "gate lift", "pause --queue celery", "resume --queue celery"),
    *("outbox drop 1 --yes", "outbox retry", "policy unset fleet.healthy", "discard {id}"),
]


@pytest.mark.timeout(7200)
def test_NEW_5_no_command_ends_in_a_traceback_whatever_stands_in_the_ledger(
    fleet: Fleet, keeper: Keeper
) -> None:
    mid, client = fill(fleet, keeper), keeper.ledger.client
    context = CLIContext(app=fleet.app, no_color=False, workdir=None)
    before = {key: client.dump(key) for key in client.keys("*")}

    @settings(max_examples=EXAMPLES, derandomize=FUZZ not in os.environ, suppress_health_check=[*HealthCheck])
    @given(writes(mid), st.sampled_from([*READERS, *READERS, *ACTORS]))
    def runs(written: list[Any], command: str) -> None:
        try:
            write(client, mid, written)
            words = [word.format(mid=mid, id=ID) for word in command.split()]
            result = CliRunner().invoke(poison, words, obj=context, input="")
            if not isinstance(result.exception, SystemExit | None):
                raise AssertionError(f"{words}: {result.exception!r}") from result.exception
            assert result.exit_code in (0, 1, 2, 3), f"{words}: {result.output}"
            assert "Traceback" not in result.output and "\x1b" not in result.output
        finally:
            restore(client, before)

    runs()
