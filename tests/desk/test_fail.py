"""Whoever waits for a message that a person gave up hears of it: caller, group, chain, chord, errbacks."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery, chain, chord, group
from celery.exceptions import ChordError
from celery.result import AsyncResult
from kombu.compression import compress, register

from celery_poison import GivenUp, Quarantine
from celery_poison.errors import Quarantined
from celery_poison.testing import RedisServer
from tests import PATIENCE
from tests.apps.harness import Fleet
from tests.desk.app import build, heard
from tests.desk.keeping import Keeper

POISON = "fleet.kill_child"
OK, FAILED = "SUCCESS", "FAILURE"


@pytest.fixture
def app(fleet: Fleet) -> Iterator[Celery]:
    app = build(fleet.environ())
    yield app
    app.close()


@pytest.fixture
def keeper(app: Celery) -> Iterator[Keeper]:
    keeper = Keeper(app)
    keeper.sign()
    yield keeper
    keeper.close()


def give_up(app: Celery, mid: str, **options: Any) -> None:
    (outcome,) = Quarantine(app).fail([mid], actor="ann", note="hopeless", **options)
    assert outcome.done, outcome


def refusal(app: Celery, mid: str, **options: Any) -> str:
    quarantine = Quarantine(app)
    (outcome,) = quarantine.fail([mid], actor="ann", **options)
    assert not outcome.done
    assert quarantine.get(mid).state == "NDLV", "a refused message must stay where it is"
    assert [r.mid for r in quarantine.list()] == [mid]
    return outcome.error


def test_SAP_7_the_caller_of_a_failed_message_gets_a_failure_that_says_who_gave_up_and_why(
    app: Celery, keeper: Keeper
) -> None:
    result = app.tasks[POISON].delay()
    mid = keeper.keep(keeper.receive())
    give_up(app, mid)
    with pytest.raises(GivenUp, match=r"killed its process by SIGKILL \(hopeless\)"):
        result.get(timeout=PATIENCE)
    record = Quarantine(app).get(mid)
    assert (record.state, record.resolution, record.actor, record.note) == (
        "FAIL",
        "failed",
        "ann",
        "hopeless",
    )


@pytest.mark.parametrize("compression", [None, "gzip", "bzip2", "lzma"])
def test_SAP_7_every_later_link_of_a_chain_fails_with_it(
    compression: str | None, app: Celery, keeper: Keeper
) -> None:
    healthy, poison = app.tasks["fleet.healthy"], app.tasks[POISON]
    links = chain(poison.si().set(compression=compression), healthy.si(1), healthy.si(2))
    last = links.apply_async()
    give_up(app, keeper.keep(keeper.receive()))
    for result in (last, last.parent, last.parent.parent):
        with pytest.raises(GivenUp):
            result.get(timeout=PATIENCE)


@pytest.mark.parametrize(
    ("imported", "caught"), [("celery_poison", "celery_poison.errors"), ("celery", "celery.exceptions")]
)
def test_SAP_7_a_client_catches_GivenUp_with_the_plugin_and_reads_the_same_sentence_without(
    app: Celery, keeper: Keeper, imported: str, caught: str
) -> None:
    result = app.tasks[POISON].delay()
    give_up(app, keeper.keep(keeper.receive()))
    script = f"""if True:
        import {imported}
        from celery import Celery
        try:
            Celery(backend={app.conf.result_backend!r}).AsyncResult({result.id!r}).get(timeout={PATIENCE})
        except Exception as error:
            print(type(error).__module__, type(error).__name__, error)
    """
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert said.startswith(f"{caught} GivenUp given up in quarantine: killed its process by SIGKILL")


def test_SAP_7_a_group_fails_with_its_member(app: Celery, keeper: Keeper) -> None:
    result = group(app.tasks[POISON].si(), app.tasks[POISON].si()).apply_async()
    for _ in range(2):
        give_up(app, keeper.keep(keeper.receive()))
    with pytest.raises(GivenUp):
        result.get(timeout=PATIENCE)
    assert [child.state for child in result.results] == [FAILED, FAILED]


@pytest.mark.parametrize("fails", ["first", "last"])
def test_SAP_7_a_chord_fails_whichever_of_its_members_ends_last(
    fails: str, app: Celery, keeper: Keeper, fleet: Fleet
) -> None:
    members = [app.tasks["fleet.healthy"].si(1), app.tasks[POISON].si()]
    body = chord(members, app.tasks["fleet.healthy"].si(2)).apply_async()
    healthy = keeper.receive()
    mid = keeper.keep(keeper.receive())
    if fails == "first":
        give_up(app, mid)
    healthy.requeue()
    with fleet.worker():
        AsyncResult(healthy.headers["id"], app=app).get(timeout=PATIENCE)
        if fails == "last":
            give_up(app, mid)
        with pytest.raises(Exception, match="given up in quarantine"):
            body.get(timeout=PATIENCE)
    assert isinstance(body.result, ChordError)
    assert not fleet.marks.all("healthy", "start")[1:], "the body of a failed chord must not run"


def test_SAP_7_a_chain_that_is_a_member_of_a_chord_fails_the_chord(app: Celery, keeper: Keeper) -> None:
    healthy = app.tasks["fleet.healthy"]
    body = chord([chain(app.tasks[POISON].si(), healthy.si(1))], healthy.si(2)).apply_async()
    give_up(app, keeper.keep(keeper.receive()))
    with pytest.raises(Exception, match="given up in quarantine"):
        body.get(timeout=PATIENCE)
    assert isinstance(body.result, ChordError)


def test_SAP_7_an_errback_that_takes_the_exception_is_called_at_once(app: Celery, keeper: Keeper) -> None:
    heard.clear()
    result = app.tasks[POISON].apply_async(link_error=app.tasks["fleet.hears"].s())
    give_up(app, keeper.keep(keeper.receive()))
    ((id, error),) = heard
    assert id == result.id
    assert isinstance(error, GivenUp)


def test_SAP_7_an_errback_that_takes_the_task_id_is_sent_to_a_worker(app: Celery, keeper: Keeper) -> None:
    task = app.tasks["fleet.healthy"]
    result = app.tasks[POISON].apply_async(link_error=task.s())
    give_up(app, keeper.keep(keeper.receive()))
    by_task = {message["headers"]["task"]: message for message in keeper.raw_on_redis()}
    sent = by_task.pop(task.name)
    assert [*by_task] == ["celery_poison.failed"]
    assert result.id in sent["headers"]["argsrepr"]


def test_SAP_7_the_result_of_a_task_that_ignores_results_is_not_stored(app: Celery, keeper: Keeper) -> None:
    result = app.tasks["fleet.nobody_asks"].delay()
    give_up(app, keeper.keep(keeper.receive()))
    assert app.AsyncResult(result.id).state == "PENDING"


def test_SAP_7_a_message_of_a_task_that_no_longer_exists_can_be_failed(app: Celery, keeper: Keeper) -> None:
    result = app.tasks[POISON].delay()
    mid = keeper.keep(keeper.receive())
    app.tasks.pop(POISON)
    give_up(app, mid)
    with pytest.raises(GivenUp):
        result.get(timeout=PATIENCE)


def test_a_task_that_succeeded_after_all_cannot_be_failed(app: Celery, keeper: Keeper) -> None:
    result = app.tasks[POISON].delay()
    mid = keeper.keep(keeper.receive())
    app.backend.store_result(result.id, 42, OK)
    assert "SUCCESS already" in refusal(app, mid)
    assert result.get(timeout=PATIENCE) == 42


# --- bodies that are not for our eyes --------------------------------------------------------------


def test_a_pickled_body_is_never_opened_and_failing_it_is_refused_while_its_canvas_is_unknown(
    app: Celery, keeper: Keeper
) -> None:
    result = app.tasks[POISON].apply_async(serializer="pickle")
    mid = keeper.keep(keeper.receive())
    assert "use --force" in refusal(app, mid)
    give_up(app, mid, force=True)
    with pytest.raises(GivenUp):
        result.get(timeout=PATIENCE)


def test_SAP_7_a_pickled_message_that_its_worker_had_decoded_resolves_its_chain(
    app: Celery, keeper: Keeper
) -> None:
    last = chain(app.tasks[POISON].si().set(serializer="pickle"), app.tasks["fleet.healthy"].si(1))()
    message = keeper.receive()
    message.accept = {"application/x-python-serialize"}
    message.decode()
    give_up(app, keeper.keep(message))
    with pytest.raises(GivenUp):
        last.get(timeout=PATIENCE)


def test_SAP_7_a_body_in_a_codec_that_only_workers_open_resolves_its_errback_once_a_worker_had_opened_it(
    app: Celery, keeper: Keeper, caplog: pytest.LogCaptureFixture
) -> None:
    """As kombu's brotli and zstd, and a codec of an app's own: no operator's process opens those."""
    register(bytes.swapcase, bytes.swapcase, "application/x-swapped")
    heard.clear()
    opened, sealed = (
        app.tasks[POISON].apply_async(
            compression="application/x-swapped", link_error=app.tasks["fleet.hears"].s()
        )
        for _ in range(2)
    )
    message = keeper.receive()
    message.decode()
    give_up(app, keeper.keep(message))
    assert len(heard) == 1
    mid = keeper.keep(keeper.receive())
    assert "compressed by 'application/x-swapped'" in refusal(app, mid)
    give_up(app, mid, force=True)
    assert len(heard) == 1
    assert f"{sealed.id}] hears of its failure; chord and errbacks do not: its body" in caplog.text
    for result in (opened, sealed):
        with pytest.raises(GivenUp):
            result.get(timeout=PATIENCE)


def test_a_body_that_no_worker_could_read_can_be_failed(app: Celery, keeper: Keeper) -> None:
    result = app.tasks[POISON].delay()
    give_up(app, keeper.keep(keeper.receive(), cause="payload", body="[[1], {}, {"))
    with pytest.raises(GivenUp):
        result.get(timeout=PATIENCE)


@pytest.mark.parametrize("method", ["gzip", "bzip2", "lzma"])
def test_a_decompression_bomb_does_not_go_off_in_the_hands_of_an_operator(
    method: str, app: Celery, keeper: Keeper
) -> None:
    bomb, kind = compress(b"[" * 80_000_000, method)
    app.tasks[POISON].delay()
    message = keeper.receive()
    headers = json.dumps({**message.headers, "compression": kind})
    mid = keeper.keep(message, cause="payload", headers=headers, body=bomb)
    assert "unpacks to more than" in refusal(app, mid)
    give_up(app, mid, force=True)


# --- result backends -------------------------------------------------------------------------------


def build_with(fleet: Fleet, backend: str | None) -> Celery:
    environ = fleet.environ() | {"RESULT_BACKEND": backend or ""}
    return build(environ)


def test_without_a_result_backend_a_message_can_be_failed_and_its_errbacks_run(fleet: Fleet) -> None:
    app = build_with(fleet, None)
    keeper = Keeper(app)
    heard.clear()
    app.tasks[POISON].apply_async(link_error=app.tasks["fleet.hears"].s())
    give_up(app, keeper.keep(keeper.receive()))
    assert len(heard) == 1
    keeper.close()
    app.close()


def test_SAP_7_a_caller_with_a_reply_queue_of_its_own_hears_of_the_failure(fleet: Fleet) -> None:
    app = build_with(fleet, "rpc://")
    keeper = Keeper(app)
    result = app.tasks[POISON].delay()
    give_up(app, keeper.keep(keeper.receive()))
    with pytest.raises(GivenUp):
        result.get(timeout=PATIENCE)
    keeper.close()
    app.close()


@pytest.mark.parametrize("fault", ["away", "full", "no database"])
def test_a_result_backend_that_does_not_take_the_failure_loses_nothing(
    fault: str, fleet: Fleet, new_server: Callable[..., RedisServer]
) -> None:
    backend = new_server()
    # SQLAlchemy, Django's and MongoDB's backends have errors of their own.
    url = backend.url() if fault != "no database" else f"db+sqlite:///{fleet.directory}/none/results.db"
    app = build_with(fleet, url)
    keeper = Keeper(app)
    fleet.send("kill_child")
    mid = keeper.keep(keeper.receive())
    if fault == "away":
        backend.kill()
    elif fault == "full":
        backend.client().config_set("maxmemory", 1)
    assert "the failure could not be stored" in refusal(app, mid)
    keeper.close()
    app.close()


def test_SAP_7_an_extended_result_names_task_worker_queue_and_arguments_without_what_is_hidden(
    fleet: Fleet,
) -> None:
    fleet.settings = {**fleet.settings, "result_extended": True, "poison_redact": ["secret"]}
    app = build_with(fleet, fleet.backend_url)
    keeper = Keeper(app)
    result = app.tasks["fleet.takes_all"].apply_async((7,), {"page": 3, "secret": "s3cr3t"})
    give_up(app, keeper.keep(keeper.receive()))
    meta = app.backend.get_task_meta(result.id)
    told = {name: meta[name] for name in ("name", "args", "kwargs", "worker", "queue")}
    assert told == {
        "name": "fleet.takes_all",
        "args": [7],
        "kwargs": {"page": 3, "secret": "(hidden)"},
        "worker": "w1@test",
        "queue": "celery",
    }
    keeper.close()
    app.close()


def test_SAP_7_a_pickled_failure_is_read_by_a_client_that_does_not_have_this_package() -> None:
    unknown = "import sys; sys.modules['celery_poison'] = None; import pickle; "
    for error, kind in ((GivenUp("for good"), GivenUp), (Quarantined("waits", "m", "oom", "f"), Quarantined)):
        packed = pickle.dumps(error)
        again = pickle.loads(packed)
        assert type(again) is kind and again.args == error.args and str(again) == str(error)
        show = f"e = pickle.loads({packed!r}); print(type(e).__module__, type(e).__name__, e.args[0])"
        seen = subprocess.run([sys.executable, "-c", unknown + show], capture_output=True, text=True)
        assert seen.stdout.split(maxsplit=2)[1:] == [kind.__name__, f"{error}\n"], seen.stderr


def test_NEW_10_whoever_waits_for_a_failure_that_is_kept_is_told_once(app: Celery, keeper: Keeper) -> None:
    heard.clear()
    task = app.tasks[POISON]
    result = task.apply_async(link_error=app.tasks["fleet.hears"].s())
    mid = keeper.keep(keeper.receive(), "failure", crashes=0)
    app.backend.mark_as_failure(result.id, ValueError("as Celery told"))
    give_up(app, mid)
    with pytest.raises(ValueError, match="as Celery told"):
        result.get(timeout=PATIENCE)
    assert not heard and Quarantine(app).get(mid).resolution == "failed"
