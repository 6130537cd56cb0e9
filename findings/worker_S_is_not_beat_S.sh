#!/usr/bin/env bash
# Finding: `celery worker -B -S some.Scheduler` runs the default scheduler, and stores worker state in a file of that name.
#
# Versions:  celery 5.7.0
# Guess:     `-S` names the scheduler, as it does for `celery beat`.
# Behaviour: for `worker`, `-S` is `--statedb`; only the long `--scheduler` names a scheduler. Both commands start without a word.
# Seen:      worker -S: --statedb; beat -S: --scheduler
set -euo pipefail
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check celery==5.7.0
"$work/venv/bin/python" - <<'PY'
import sys
from celery.bin.beat import beat
from celery.bin.worker import worker

names = {}
for command in (worker, beat):
    (option,) = [option for option in command.params if "-S" in option.opts]
    names[command.name] = next(name for name in option.opts if name.startswith("--"))
print("; ".join(f"{command} -S: {name}" for command, name in names.items()))
sys.exit(0 if names == {"worker": "--statedb", "beat": "--scheduler"} else 1)
PY
