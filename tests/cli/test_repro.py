"""A message in quarantine becomes a test that fails until its task is mended (NEW-21)."""

from __future__ import annotations

import ast
import importlib
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_poison import Quarantine
from celery_poison.causes import Evidence
from celery_poison.extensions.repro.shrinking import Spent, shrink
from celery_poison.extensions.repro.verbs import _end_of
from celery_poison.extensions.repro.writing import Repro, TaskCall, call_of, repro_of
from celery_poison.keep.body import BodyRefused
from celery_poison.model import MessageRecord, StoredMessage
from celery_poison.testing import Worker, wait_until
from tests import PATIENCE
from tests.cli.conftest import Console

SHOP = """
import ctypes, os
from celery import Celery
from celery_poison import guarded

app = Celery("shop", broker=os.environ["SHOP_BROKER"], set_as_current=False)

@guarded(max_crashes=1)
@app.task(shared=False)
def convert(paths, quality=9, secret=""):
    for path in paths:
        if path == "bad.png" and not os.path.exists("mended"):
            ctypes.string_at(0)

@guarded(max_crashes=1)
@app.task(bind=True, shared=False)
def of_tenant(self):
    if (self.request.headers or {}).get("tenant") == {"name": "@args@"} and not os.path.exists("mended"):
        ctypes.string_at(0)
"""
BAD = "bad.png"


@pytest.fixture
def shop(tmp_path: Path, broker_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Celery]:
    """An app in a module of its own, in the current directory."""
    (tmp_path / "shop_that_dies.py").write_text(SHOP)
    monkeypatch.setenv("SHOP_BROKER", broker_url)
    monkeypatch.setenv("C_FORCE_ROOT", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])]))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    app: Celery = importlib.import_module("shop_that_dies").app
    yield app
    app.close()
    sys.modules.pop("shop_that_dies", None)


def _pytest(file: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:celery", str(file)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


PATHS = [f"{number}.png" for number in range(99)]


def _die(app: Celery, tmp_path: Path, task: str = "convert", **options: Any) -> str:
    """Have a real worker put a message into quarantine; return its task id."""
    args = [] if options else [[*PATHS[:70], BAD, *PATHS[70:]]]
    id: str = app.tasks[f"shop_that_dies.{task}"].apply_async(args, **options).id
    quarantine = Quarantine(app)
    log = tmp_path / "worker.log"
    with Worker("shop_that_dies", name="w1", pool="prefork", concurrency=1, cwd=tmp_path, log_path=log):
        wait_until(quarantine.list, PATIENCE, what=lambda: f"in quarantine\n{log.read_text()[-3000:]}")
    return id


def test_NEW_21_a_real_crash_becomes_a_test_that_passes_once_the_task_is_mended(
    shop: Celery, tmp_path: Path
) -> None:
    id = _die(shop, tmp_path)
    file = Path(Console(shop).json("repro", id[:8], "-o", ".")["file"])
    assert stat.S_IMODE(file.stat().st_mode) == 0o600, "it holds what was sent"
    failed = _pytest(file)
    assert failed.returncode == 1, failed.stdout
    assert "shop_that_dies.convert died by SIGSEGV" in failed.stdout
    assert "in convert" in failed.stdout, "faulthandler says where"
    refused = Console(shop).run("repro", id, "-o", ".", status=1)
    assert "is there already" in refused.stderr
    (tmp_path / "mended").touch()
    passed = _pytest(file)
    assert passed.returncode == 0, passed.stdout
    other = Console(shop).run("repro", id, "--minimise", status=1)
    assert "it did not die here" in other.stderr


@pytest.mark.matrix
def test_NEW_21_a_task_that_dies_of_its_headers_dies_of_them_again(shop: Celery, tmp_path: Path) -> None:
    headers = {"tenant": {"name": "@args@"}, "n": 1}
    id = _die(shop, tmp_path, "of_tenant", headers=headers)
    file = Path(Console(shop).json("repro", id, "-o", ".")["file"])
    failed = _pytest(file)
    assert failed.returncode == 1 and "of_tenant died by SIGSEGV" in failed.stdout, failed.stdout
    assert _skeleton(file.read_text())[1] == [[], {}, headers]
    (tmp_path / "mended").touch()
    assert _pytest(file).returncode == 0


@pytest.mark.matrix
def test_NEW_21_of_a_hundred_items_the_bad_one_is_left(shop: Celery, tmp_path: Path) -> None:
    told = Console(shop).json("repro", _die(shop, tmp_path), "--minimise", "--seconds", "900")
    assert told["dies"] and told["said"].startswith("it died by SIGSEGV here"), told
    assert _skeleton(told["text"])[1] == [[[BAD]], {}, {}]


CAUSES = """
import ctypes, os, sys, time
from celery import Celery
from celery.exceptions import Reject, SoftTimeLimitExceeded
from celery_poison import guarded

app = Celery("causes", broker="memory://", set_as_current=False)

def grow():
    held = []
    while True:
        held.append(b"x" * (8 << 20))

def fail():
    raise ValueError("no such page")

DEATHS = {
    "signal:11": lambda task: ctypes.string_at(0),
    "signal:9": lambda task: os.kill(os.getpid(), 9),
    "worker_lost": lambda task: os.killpg(0, 9),
    "exit:3": lambda task: os._exit(3),
    "system_exit": lambda task: sys.exit(),
    "oom": lambda task: grow(),
    "memory_error": lambda task: bytearray(1 << 50),
    "time_limit": lambda task: time.sleep(600),
    "failure": lambda task: fail(),
    "failure of a soft limit": lambda task: time.sleep(600),
    "retried": lambda task: task.retry(exc=ValueError("no such page"), max_retries=1),
    "failures": lambda task: task.rollback(),
    "rejected": lambda task: fail(),
    "requested": lambda task: task.quarantine("unreadable"),
}

@guarded
@app.task(bind=True, shared=False, name="causes.die")
def die(self, cause):
    if os.path.exists("mended"):
        self.discard("it is empty") if cause == "requested" else None
        return
    DEATHS[cause](self)
"""
#: Cause -> how its test says that the task died.
ENDS = {
    "signal:11": "died by SIGSEGV",
    "signal:9": "died by SIGKILL",
    "worker_lost": "died by SIGKILL",
    "exit:3": "ended its process with exit status 3",
    "system_exit": "ended its process with exit status 0",
    "oom": "raised MemoryError",
    "memory_error": "raised MemoryError",
    "time_limit": "ran for longer than 2 s",
    "failure": "raised ValueError",
    "failure of a soft limit": "ran for longer than 2 s",
    "retried": "raised ValueError",
    "failures": "raised RollbackRequested",
    "rejected": "raised ValueError",
    "requested": "raised QuarantineRequested",
}


def test_NEW_21_the_test_of_each_cause_fails_before_the_repair_and_passes_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "causes_to_die_of.py").write_text(CAUSES)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])]))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    app: Celery = importlib.import_module("causes_to_die_of").app

    def written(cause: str) -> Repro:
        soft = cause == "failure of a soft limit"
        headers = {"timelimit": [None, 2]} if soft else {}
        evidence = Evidence(
            limit_kb=400 << 10 if cause == "oom" else None,
            time_limit_s=2 if cause == "time_limit" else None,
            exception="billiard.exceptions.SoftTimeLimitExceeded" if soft else "",
        )
        body = json.dumps([[cause], {}, {}]).encode()
        stored = StoredMessage(
            body=body, content_type="application/json", content_encoding="utf-8", headers=headers
        )
        record = MessageRecord(
            id="an id", mid=cause, task="causes.die", queue="celery", state="NDLV", evidence=evidence
        )
        return repro_of(app, record, stored, call_of(app, (), record.task, stored))

    try:
        tests = {cause: written(cause) for cause in ENDS}
        with ThreadPoolExecutor(2) as side_by_side:
            before = dict(
                zip(ENDS, side_by_side.map(lambda made: _end_of(made, 60), tests.values()), strict=True)
            )
            assert before == ENDS
            file = tmp_path / tests["oom"].name
            file.write_text(tests["oom"].text)
            failed = _pytest(file)
            assert failed.returncode == 1 and "causes.die raised MemoryError" in failed.stdout, failed.stdout
            assert ", in grow" in failed.stdout, "the traceback says where"
            (tmp_path / "mended").touch()
            after = dict(
                zip(ENDS, side_by_side.map(lambda made: _end_of(made, 60), tests.values()), strict=True)
            )
            assert after == dict.fromkeys(ENDS, "")
        assert _pytest(file).returncode == 0
    finally:
        app.close()
        sys.modules.pop("causes_to_die_of", None)


# --- what a publisher can put into it ----------------------------------------------------------------

app = Celery("shop", broker="memory://", set_as_current=False)


@app.task(shared=False, name="shop.convert")
def convert(path: Any = None, **options: Any) -> None: ...


def _made(args: Any, kwargs: Any, redact: Any = (), **fields: Any) -> Repro:
    body = json.dumps([args, kwargs, {}]).encode()
    headers = {"retries": fields.pop("retries", 0), **fields.pop("headers", {})}
    stored = StoredMessage(
        body=body, content_type="application/json", content_encoding="utf-8", headers=headers
    )
    record = MessageRecord(
        **{"id": "an id", "mid": "m", "task": "shop.convert", "queue": "celery", "state": "NDLV"} | fields
    )
    return repro_of(app, record, stored, call_of(app, redact, record.task, stored))


def _skeleton(text: str) -> tuple[str, Any]:
    """Return the code of a file without the values of its literals, and the arguments."""
    tree = ast.parse(text)
    (function,) = (node for node in tree.body if getattr(node, "name", "") == "arguments")
    assert isinstance(function, ast.FunctionDef)
    found = [ast.literal_eval(each.value) for each in function.body if isinstance(each, ast.Assign)]
    function.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            node.value = None
    return ast.dump(tree), found


TEXT = st.text() | st.sampled_from(
    ["@args@", '"""', "'''\nimport os", "\\", "{x}", "\u202e", "\udc80", "\0", "\r\n", "fill_in('a')", "$("]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXT, inner, max_size=5),
    max_leaves=20,
)
NAMED = st.dictionaries(TEXT, JSON, max_size=4)


@settings(max_examples=150)
@given(st.lists(JSON, max_size=4), NAMED, TEXT, JSON, NAMED)
def test_NEW_21_whatever_was_published_gets_into_the_file_as_literals_only(
    args: Any, kwargs: Any, id: str, retries: Any, headers: Any
) -> None:
    headers = {f"of {name}": value for name, value in headers.items()}  # none is called as one of Celery's
    made = _made(args, kwargs, id=id, mid=id, retries=retries, headers=headers)
    plain, _ = _skeleton(_made([], {}).text)
    skeleton, found = _skeleton(made.text)
    assert made.text.isascii()
    assert skeleton == plain
    assert found == [args, kwargs, headers]
    assert made.name.isascii() and made.name.removesuffix(".py").isidentifier()


def test_NEW_21_numbers_that_json_lacks_and_deep_nesting_are_valid_python() -> None:
    text = _made([float("inf"), -float("inf"), float("nan")], {}).text
    assert "[float('inf'), float('-inf'), float('nan')]" in text
    deep: Any = 1
    for _ in range(40):
        deep = [deep]
    assert _skeleton(_made([deep], {}).text)[1] == [[deep], {}, {}]
    for _ in range(300):
        deep = {"a": deep}
    with pytest.raises(BodyRefused):
        _made([deep], {})


def test_NEW_21_only_headers_that_a_task_can_read_get_into_the_file() -> None:
    deep: Any = "x"
    for _ in range(70):
        deep = [deep]
    headers = {
        "tenant": "ann",
        "api_key": "s3cret",
        "nested": {"api_key": "s3cret", "n": [1, None, 0.5]},
        "lang": "py",
        "root_id": "r",
        "poison_mid": "m",
        "argsrepr": "()",
        "x-death": [],
        "bytes": b"x",
        "deep": deep,
        "update": "x",
        "mixed": {1: "x"},
    }
    made = _made([], {}, redact=["api_*"], headers=headers)
    assert made.hidden == 2 and "s3cret" not in made.text
    filled = made.text.replace("fill_in(\"headers['api_key']\")", "1").replace(
        "fill_in(\"headers['nested']['api_key']\")", "2"
    )
    nested = {"api_key": 2, "n": [1, None, 0.5]}
    assert _skeleton(filled)[1][2] == {"tenant": "ann", "api_key": 1, "nested": nested}


def test_NEW_21_what_poison_redact_hides_is_asked_for(tmp_path: Path) -> None:
    made = _made(["s3cret"], {"card": {"number": "4111", "of": "ann"}}, redact=["path", "num*"])
    assert made.hidden == 2
    assert "s3cret" not in made.text and "4111" not in made.text and "'ann'" in made.text
    file = tmp_path / made.name
    file.write_text(made.text)
    failed = _pytest(file)
    assert failed.returncode == 1
    assert "poison_redact hides args[0]: write its value in place of fill_in(...)" in failed.stdout


def test_NEW_21_a_pickled_body_gets_into_the_file_by_a_flag_and_is_not_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    body = b"cos\n_exit\n(I3\ntR."  # would end this process
    kind = "application/x-python-serialize"
    stored = StoredMessage(body=body, content_type=kind, content_encoding="binary", headers={})
    record = MessageRecord(id="an id", mid="m", task="shop.convert", queue="celery", state="NDLV")
    with pytest.raises(BodyRefused):
        call_of(app, (), record.task, stored)
    with pytest.raises(BodyRefused, match="accept_content has no pickle"):
        call_of(app, (), record.task, stored, pickled=True)
    monkeypatch.setitem(app.conf, "accept_content", ["json", "pickle"])
    call = call_of(app, (), record.task, stored, pickled=True)
    made = repro_of(app, record, stored, call)
    assert call.pickled == body
    assert "PICKLED = 'Y29z" in made.text


def test_NEW_21_shrinking_is_bounded_and_finds_the_one_item() -> None:
    runs = 0

    def dies(value: Any) -> bool:
        nonlocal runs
        runs += 1
        if runs > 60:
            raise Spent
        return bool(value) and "bad" in value[0].get("rows", ())

    rows = [str(number) for number in range(100)]
    found = shrink([{"rows": [*rows[:33], "bad", *rows[33:]], "quality": 9}], dies)
    assert found == ([{"rows": ["bad"]}], True), runs
    runs = 58
    value, is_minimal = shrink([{"rows": [*rows, "bad"]}], dies)
    assert "bad" in value[0]["rows"] and not is_minimal
    assert TaskCall(pickled=b"").args == ()


def test_NEW_21_shrinking_goes_on_with_parts_of_the_size_that_it_has_come_to() -> None:
    """What is left of a long list dies as long as 2,000 of its 9,000 rows are there, whichever."""
    runs = 0

    def dies(value: Any) -> bool:
        nonlocal runs
        runs += 1
        if runs > 50:
            raise Spent
        return bool(value) and len(value[0]) > 2000

    (rows,), is_minimal = shrink([list(range(9000))], dies)
    assert 2000 < len(rows) < 2050 and not is_minimal, len(rows)


JSON = st.recursive(
    st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)


@given(JSON)
def test_NEW_21_whatever_kills_by_being_there_shrinks_to_nothing_in_a_few_runs(value: Any) -> None:
    runs = 0

    def dies(smaller: Any) -> bool:
        nonlocal runs
        runs += 1
        return True

    smallest, is_minimal = shrink(value, dies)
    assert is_minimal and smallest in ([], {}, "", 0)
    assert runs <= 5, "one step, and none of what is left"
