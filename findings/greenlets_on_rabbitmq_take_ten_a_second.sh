#!/usr/bin/env bash
# Finding: on RabbitMQ a worker of gevent receives about ten messages a second while the broker's heartbeat is on, as it is by default.
#
# Versions:  celery 5.7.0, kombu 5.7.0, amqp 5.4.2, gevent 26.9.0; Debian's rabbitmq-server 3.10.8
# Guess:     a hundred tasks that do nothing take a fraction of a second, as with prefork.
# Behaviour: the loop of green pools takes one message from its connection, then waits up to 0.1 s for something to read on
#            the connection for events, on which only the broker's heartbeats come. It does so for each message.
#            With broker_heartbeat = 0 it does not, and all of them are through at once.
# Seen:      100 messages: 8.5 s with the default, 0.0 s with broker_heartbeat = 0
set -euo pipefail
server="$(PATH="/usr/lib/rabbitmq/bin:$PATH:/usr/sbin" command -v rabbitmq-server)" || { echo "needs rabbitmq-server" >&2; exit 2; }
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check celery==5.7.0 kombu==5.7.0 amqp==5.4.2 gevent==26.9.0
cat > "$work/shop.py" <<'PY'
import os, time
from celery import Celery

app = Celery("shop", broker=os.environ["URL"])
app.conf.task_ignore_result = True
if os.environ.get("HEARTBEAT"):
    app.conf.broker_heartbeat = int(os.environ["HEARTBEAT"])


@app.task
def note():
    with open(os.environ["MARKS"], "a") as marks:
        print(time.time(), file=marks)
PY
cat > "$work/try.py" <<'PY'
import os, signal, socket, subprocess, sys, time

work, server = sys.argv[1:]
os.chdir(work)
sys.path.insert(0, work)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


port, mapper_port = free_port(), free_port()
env = {name: value for name, value in os.environ.items() if not name.startswith(("RABBITMQ_", "ERL_"))}
env |= {
    "HOME": work, "ERL_EPMD_PORT": str(mapper_port), "RABBITMQ_NODENAME": f"finding{port}@localhost",
    "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1", "RABBITMQ_NODE_PORT": str(port), "RABBITMQ_DIST_PORT": str(free_port()),
    "RABBITMQ_CONF_ENV_FILE": os.devnull, "RABBITMQ_ENABLED_PLUGINS_FILE": f"{work}/plugins",
    "RABBITMQ_MNESIA_BASE": f"{work}/mnesia", "RABBITMQ_LOG_BASE": work, "RABBITMQ_ALLOW_INPUT": "1",
    "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-noinput -start_epmd false",
}
with open("plugins", "w") as plugins:
    plugins.write("[].\n")
os.environ["URL"] = f"amqp://guest:guest@127.0.0.1:{port}//"
quiet = {"env": env, "stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
running = [subprocess.Popen(["epmd", "-port", str(mapper_port), "-address", "127.0.0.1"], **quiet), subprocess.Popen([server], **quiet)]
MANY = 100


def seconds(heartbeat):
    """Return how long a worker takes from the first to the last of many messages that wait for it."""
    os.environ["HEARTBEAT"], os.environ["MARKS"] = heartbeat, f"{work}/marks{heartbeat}"
    open(os.environ["MARKS"], "w").close()
    for _ in range(MANY):
        shop.note.delay()
    words = "-m celery -q -A shop worker -P gevent -c 4 --without-gossip --without-mingle -l ERROR".split()
    worker = subprocess.Popen([sys.executable, *words], stderr=subprocess.DEVNULL)
    try:
        while len(marks := open(os.environ["MARKS"]).read().split()) < MANY:
            time.sleep(0.1)
    finally:
        worker.kill()
        worker.wait()
    return float(marks[-1]) - float(marks[0])


try:
    import kombu

    while running[1].poll() is None:
        try:
            with kombu.Connection(os.environ["URL"], connect_timeout=5) as connection:
                connection.connect()
            break
        except connection.connection_errors:
            time.sleep(0.5)
    import shop

    on, off = seconds(""), seconds("0")
    print(f"{MANY} messages: {on:.1f} s with the default, {off:.1f} s with broker_heartbeat = 0")
    sys.exit(0 if on > 4 and off < on / 4 else 1)
finally:
    for process in running:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
PY
"$work/venv/bin/python" "$work/try.py" "$work" "$server"
