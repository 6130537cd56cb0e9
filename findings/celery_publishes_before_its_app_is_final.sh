#!/usr/bin/env bash
# Finding: Celery publishes a task without having finalized its app.
#
# Versions:  celery 5.7.0, kombu 5.7.0
# Guess:     nothing is published before the app is finalized: by then each task is bound to it, and `on_after_finalize` has run.
# Behaviour: `.delay()` of a task as its decorator returned it publishes, and the app is as unfinished as before; so what is
#            to be set up in `on_after_finalize` is not set up in a process that only publishes.
# Seen:      published: 1; finalized: False; on_after_finalize: 0 calls
#            after app.finalize(): on_after_finalize: 1 calls
set -euo pipefail
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check celery==5.7.0 kombu==5.7.0
cd "$work"
"$work/venv/bin/python" - <<'PY'
import sys
from celery import Celery

app = Celery("shop", broker="memory://")
calls = []


@app.on_after_finalize.connect
def set_up(sender, **_):
    calls.append(sender)


@app.task
def pay(number):
    return number


pay.delay(1)
with app.connection() as connection:
    published = connection.default_channel._size("celery")
first = published, app.finalized, len(calls)
print("published: {}; finalized: {}; on_after_finalize: {} calls".format(*first))
app.finalize()
print(f"after app.finalize(): on_after_finalize: {len(calls)} calls")
sys.exit(0 if first == (1, False, 0) and len(calls) == 1 else 1)
PY
