#!/usr/bin/env bash
# Finding: `pip install celery redis` gives a Celery whose Redis transport cannot be imported.
#
# Versions:  celery 5.7.0, kombu 5.7.0, redis 8.1.0
# Guess:     the two packages are enough, as they were with kombu 5.6; `celery[redis]` only adds the client.
# Behaviour: kombu 5.7's Redis transport imports `packaging`, which only kombu's extra `redis` requires.
# Seen:      celery + redis: ModuleNotFoundError: No module named 'packaging'; with packaging installed: imported
set -euo pipefail
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check celery==5.7.0 kombu==5.7.0 redis==8.1.0
try() { "$work/venv/bin/python" -c 'import kombu.transport.redis; print("imported")' 2>&1 | tail -n 1 || true; }
without="$(try)"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check packaging==26.3
with="$(try)"
echo "celery + redis: $without; with packaging installed: $with"
[[ "$without" == *"No module named 'packaging'"* && "$with" == imported ]]
