"""Each kind of receiver, well and unwell: it never takes longer than it may, and no secret gets out."""

from __future__ import annotations

import base64
import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from celery_poison.extensions.notify.notifier import Wording
from celery_poison.extensions.notify.receivers import NotDelivered, Receiver
from celery_poison.testing import wait_until
from tests.docs.pages import blocks, text
from tests.fleet.inbox import SECRET, Inbox

PAYLOAD = {"kind": "group", "text": "żółw 🐢", "count": 12}
#: Seconds; a fresh process takes its time on a busy machine.
PATIENT = 60.0


def test_a_webhook_gets_the_payload_as_json() -> None:
    with Inbox() as inbox:
        Receiver(inbox.url, PATIENT).tell(PAYLOAD)
    assert inbox.told == [PAYLOAD]


def test_a_webhook_is_told_user_and_password_of_its_url() -> None:
    with Inbox() as inbox:
        Receiver(inbox.url.replace("://", f"://ann:p%2F{SECRET}@"), PATIENT).tell(PAYLOAD)
    assert inbox.told == [PAYLOAD]
    assert inbox.authorization == f"Basic {base64.b64encode(f'ann:p/{SECRET}'.encode()).decode()}"


@pytest.mark.parametrize("status", [302, 400, 404, 500])
def test_a_webhook_that_refuses_or_sends_elsewhere_was_not_told(status: int) -> None:
    with Inbox() as inbox:
        inbox.answer = status
        with pytest.raises(NotDelivered, match=f"^HTTP {status}$"):
            Receiver(inbox.url, PATIENT).tell(PAYLOAD)
    assert len(inbox.told) == 1


@pytest.mark.parametrize("answer", [0, 1])
def test_a_webhook_that_never_answers_or_never_stops_answering_is_given_up_in_time(answer: int) -> None:
    with Inbox() as inbox:
        inbox.answer = answer
        begun = time.monotonic()
        with pytest.raises(NotDelivered, match=r"^no answer within 2 s$"):
            Receiver(inbox.url, 2.0).tell(PAYLOAD)
        assert time.monotonic() - begun < 30


@pytest.mark.parametrize(
    "url",
    [
        f"http://127.0.0.1:1/{SECRET}",
        f"http://u:{SECRET}@127.0.0.1/",
        f"http://127.0.0.1:{SECRET}/",
        f"https://nowhere.invalid/{SECRET}",
    ],
)
def test_of_a_webhook_that_cannot_be_reached_no_secret_is_told(url: str) -> None:
    receiver = Receiver(url, PATIENT)
    with pytest.raises(NotDelivered) as refused:
        receiver.tell(PAYLOAD)
    assert str(refused.value) and SECRET not in f"{refused.value} {receiver.name} {receiver.key}"


def test_the_url_of_a_webhook_is_in_no_list_of_processes() -> None:
    with Inbox() as inbox:
        inbox.answer = 0
        telling = Thread(target=_tell_in_vain, args=(inbox.url,))
        telling.start()
        wait_until(lambda: inbox.told, what="it is being told")
        children = _children_of(os.getpid())
        assert any(b"receivers.py" in line for line in children)
        assert not any(SECRET.encode() in line for line in children)
    telling.join(PATIENT)
    assert not telling.is_alive()


def _tell_in_vain(url: str) -> None:
    with suppress(NotDelivered):
        Receiver(url, PATIENT).tell(PAYLOAD)


def _children_of(parent: int) -> list[bytes]:
    """Return the command line and the environment of each child of a process."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if int((directory / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                found.append((directory / "cmdline").read_bytes() + (directory / "environ").read_bytes())
    return found


def test_a_command_reads_the_payload_from_its_standard_input_and_no_shell_is_asked(tmp_path: Path) -> None:
    words = [sys.executable, "-c", "import sys; open(sys.argv[1], 'w').write(sys.stdin.read())"]
    Receiver([*words, str(tmp_path / "$(told)")], PATIENT).tell(PAYLOAD)
    assert json.loads((tmp_path / "$(told)").read_text()) == PAYLOAD


def test_a_command_that_reads_nothing_was_told_and_one_that_fails_or_is_not_there_was_not() -> None:
    Receiver(["true"], PATIENT).tell({"text": "x" * 1_000_000})
    with pytest.raises(NotDelivered, match=r"^exit status 1$"):
        Receiver(["false"], PATIENT).tell(PAYLOAD)
    with pytest.raises(NotDelivered, match="No such file"):
        Receiver(["/no/such/pager", SECRET], PATIENT).tell(PAYLOAD)
    assert Receiver(["/no/such/pager", SECRET]).name == "/no/such/pager"


def test_a_command_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    with pytest.raises(NotDelivered, match="no answer within"):
        Receiver(["sh", "-c", f"sleep 600 & echo $! > {pid}; wait"], 2.0).tell(PAYLOAD)
    wait_until(lambda: not _lives(int(pid.read_text())), what="the end of what it started")


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_a_function_is_called_with_the_payload_in_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop_alerts.py").write_text(
        "import json, os, pathlib\n"
        "def told(payload):\n"
        "    pathlib.Path(__file__).with_name('told').write_text(json.dumps([os.getpid(), payload]))\n"
        "def fails(payload):\n"
        "    raise RuntimeError('no')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    Receiver("shop_alerts:told", PATIENT).tell(PAYLOAD)
    pid, payload = json.loads((tmp_path / "told").read_text())
    assert payload == PAYLOAD and pid != os.getpid()
    for function in ("fails", "is_not_there"):
        with pytest.raises(NotDelivered, match=r"^exit status 1$"):
            Receiver(f"shop_alerts:{function}", PATIENT).tell(PAYLOAD)


def test_the_example_of_the_how_to_sends_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (example,) = (block for block in blocks(text("howto/notify.md"), "python") if "def pagerduty(" in block)
    told = Wording("shop", "poison").test().as_dict()
    with Inbox() as inbox:
        monkeypatch.setenv("PAGERDUTY_KEY", SECRET)
        example = example.replace("https://events.pagerduty.com/v2/enqueue", inbox.url)
        (tmp_path / "shop_examples.py").write_text(example)
        monkeypatch.syspath_prepend(tmp_path)
        Receiver("shop_examples:pagerduty", PATIENT).tell(told)
    (sent,) = inbox.told
    assert (sent["routing_key"], sent["event_action"]) == (SECRET, "trigger")
    assert sent["payload"]["summary"] == told["text"] and sent["payload"]["custom_details"] == told
    assert {"source", "severity"} <= sent["payload"].keys() and len(sent["dedup_key"]) < 255


def test_a_receiver_is_recognised_by_its_key_as_long_as_it_is_the_same() -> None:
    targets: list[Any] = ["https://a/x", "https://a/y", ["a", "x"], ["a", "y"], "a:x"]
    assert len({Receiver(target).key for target in targets}) == len(targets)
    assert Receiver(["a", "x"]).key == Receiver(("a", "x")).key
