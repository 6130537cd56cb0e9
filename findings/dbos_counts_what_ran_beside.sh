#!/usr/bin/env bash
# Finding: `max_recovery_attempts` of a DBOS workflow gives up healthy workflows that only waited beside one that kills.
#
# Versions:  dbos 3.4.0, on SQLite
# Guess:     the limit counts the deaths of a workflow; healthy ones that the same process held are done in the end.
# Behaviour: a queue without `worker_concurrency` takes all of its workflows at once, and each recovery of the process counts
#            for each of them. At the limit all are MAX_RECOVERY_ATTEMPTS_EXCEEDED, the healthy ones too.
# Seen:      10 healthy workflows of 2 s beside one that ends its process after 1 s, limit 2: 11 of 11 given up
set -euo pipefail
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check dbos==3.4.0
cat > "$work/shop.py" <<'PY'
import os, signal, sys, threading, time
from dbos import DBOS, SetWorkflowID

config = {"name": "shop", "system_database_url": "sqlite:///shop.db", "application_version": "1", "log_level": "CRITICAL"}
DBOS(config=config)


@DBOS.workflow(max_recovery_attempts=2)
def work(kills):
    time.sleep(1 if kills else 2)
    if kills:
        os.kill(os.getpid(), signal.SIGKILL)


DBOS.launch()
queue = DBOS.register_queue("shop")
if sys.argv[1] == "send":
    for number in range(11):
        with SetWorkflowID(f"w{number}"):
            DBOS.enqueue_workflow("shop", work, number == 10)
until = time.monotonic() + 20
while time.monotonic() < until and any(row.status in ("ENQUEUED", "PENDING") for row in DBOS.list_workflows()):
    time.sleep(0.2)
given_up = sum(row.status == "MAX_RECOVERY_ATTEMPTS_EXCEEDED" for row in DBOS.list_workflows())
print(given_up, flush=True)
os._exit(0)
PY
cd "$work"
verb=send given_up=""
for life in 1 2 3 4 5 6 7 8; do
    given_up="$("$work/venv/bin/python" shop.py "$verb" 2> /dev/null || true)"
    verb=go
    [ -z "$given_up" ] || break
done
echo "10 healthy workflows of 2 s beside one that ends its process after 1 s, limit 2: ${given_up:-none} of 11 given up"
[ "$given_up" = 11 ]
