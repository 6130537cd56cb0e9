"""What a worker process holds is in one book, whatever becomes of its connections and of Redis (NEW-9)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis.exceptions import ConnectionError

from celery_poison.broker.redis import book
from celery_poison.broker.redis.unacked import arriving_key
from celery_poison.testing import RedisServer, wait_until
from tests.broker.kit import Killed, Process, Receiver, Site, killed_after
from tests.harness.proxy import TcpProxy


@pytest.fixture
def line(redis_server: RedisServer) -> Iterator[TcpProxy]:
    """The way from a worker to Redis. Whoever looks at the broker takes another."""
    with TcpProxy("127.0.0.1", redis_server.port) as line:
        yield line


@pytest.fixture
def process(site: Site, new_site: Callable[..., Site], line: TcpProxy) -> Process:
    return Process(new_site(line.url(site.url)))


def mids(site: Site, key: str = "a") -> list[str]:
    return [message["headers"]["poison_mid"] for message in site.waiting().get(key, [])]


def _cut(line: TcpProxy, *receivers: Receiver) -> None:
    """The connection is lost; Celery closes it while Redis is away."""
    line.cut()
    for receiver in receivers:
        receiver.connection.close()


def test_NEW_9_what_nobody_had_begun_goes_back_in_its_order_when_redis_is_there_again(
    site: Site, process: Process, line: TcpProxy
) -> None:
    site.send(*range(5))
    receiver = process.connect()
    receiver.receive(5)
    site.send(5)
    _cut(line, receiver)
    assert len(site.entries()) == 5 and mids(site) == ["m5"], "Redis has heard nothing"
    assert not process.book.is_empty
    line.heal()
    process.book.flush()
    assert mids(site) == [f"m{n}" for n in range(6)]
    assert [m["headers"].get("redelivered") for m in site.waiting()["a"]] == [True] * 5 + [None]
    assert site.keys() == {"a"} and process.book.is_empty


def test_NEW_9_what_has_begun_stays_and_is_acknowledged_under_its_tag_by_the_next_connection(
    site: Site, process: Process, line: TcpProxy
) -> None:
    site.send(0, 1, 2)
    receiver = process.connect()
    first, second, third = receiver.receive(3)
    process.begin(second)
    _cut(line, receiver)
    line.heal()
    process.book.flush()
    assert mids(site) == ["m0", "m2"] and list(site.entries()) == [second.delivery_tag]
    assert [message.is_mine for message in (first, second, third)] == [False, True, False]
    process.connect().receive(2)
    process.finish(second)
    for _ in range(3):
        process.book.flush()
    assert site.everything() == ["m0", "m2"] and not site.waiting(), "no copy of it comes"
    assert second.delivery_tag not in {*site.entries(), *site.scores()}


def test_NEW_9_an_acknowledgement_that_redis_did_not_hear_is_told_later_and_once(
    site: Site, process: Process, line: TcpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(book, "PROMPT", 0.0)
    site.send(0, 1)
    receiver = process.connect()
    message, other = receiver.receive(2)
    process.begin(message, other)
    line.cut()
    process.finish(message)
    assert len(site.entries()) == 2
    assert process.books.owes_acknowledgements, "nothing may be forgotten that a copy could need"
    with pytest.raises(book.AWAY):
        process.book.flush()
    assert process.books.owes_acknowledgements
    line.heal()
    process.book.flush()
    assert not process.books.owes_acknowledgements
    assert list(site.entries()) == list(site.scores()) == [other.delivery_tag] and not site.waiting()
    told = _calls(site, "hdel")
    process.book.flush()
    assert _calls(site, "hdel") == told


def _calls(site: Site, command: str) -> int:
    stats: Any = site.raw.info("commandstats")
    return int(stats.get(f"cmdstat_{command}", {}).get("calls", 0))


def test_NEW_9_what_was_rejected_while_redis_was_away_is_behind_all_that_waits_in_that_order(
    site: Site, process: Process, line: TcpProxy
) -> None:
    site.send(0, 1)
    receiver = process.connect()
    messages = receiver.receive(2)
    receiver.consumer.cancel()
    site.send(2)
    process.begin(*messages)
    line.cut()
    for message in messages:
        message.reject(requeue=True)
    line.heal()
    process.book.flush()
    assert mids(site) == ["m2", "m0", "m1"]


def test_NEW_9_what_is_rejected_while_redis_is_away_goes_where_it_belongs_later(
    site: Site, process: Process, line: TcpProxy
) -> None:
    site.send(*range(4))
    receiver = process.connect()
    first, second, third, fourth = receiver.receive(4)
    receiver.consumer.cancel()
    site.send(4)
    process.begin(first, second, third, fourth)
    line.cut()
    first.reject(requeue=True)
    second.to_front = True
    second.reject(requeue=True)
    third.reject()
    line.heal()
    process.book.flush()
    assert mids(site) == ["m1", "m4", "m0"] and list(site.entries()) == [fourth.delivery_tag]


def test_NEW_9_where_kombu_connects_anew_without_a_word_a_message_whose_answer_was_lost_goes_back(
    site: Site, process: Process
) -> None:
    receiver = process.connect(["a"])
    channel = receiver.channel
    receiver.drain(lambda: channel._in_poll)
    channel._finish_receiving()
    site.send(0)
    channel._brpop_start()
    wait_until(site.entries, what="Redis has given it")
    channel.client.connection.disconnect()  # with the answer in its buffer
    channel._in_poll = None
    receiver.drain(lambda: channel._in_poll)
    process.book.flush()
    receiver.receive(1)
    process.book.flush()
    assert receiver.names() == [0] and receiver.messages[0].headers["redelivered"]
    assert site.everything() == ["m0"]
    assert list(site.entries()) == [receiver.messages[0].delivery_tag]


@pytest.mark.parametrize("lost_with", ["the connection", "the channel"])
def test_NEW_9_an_entry_under_the_name_of_a_living_worker_that_does_not_know_it_is_put_back(
    site: Site, process: Process, lost_with: str
) -> None:
    """Redis had registered it when the connection broke, later than anybody asked."""
    site.send(0, 1)
    receiver = process.connect()
    known, forgotten = receiver.receive(2)
    process.begin(known, forgotten)
    process.book.nothing_came(forgotten.delivery_tag)
    if lost_with == "the connection":
        receiver.connection.close()
    else:
        receiver.channel.close()
    process.book.flush()
    assert mids(site) == ["m1"] and list(site.entries()) == [known.delivery_tag]


def test_NEW_9_nobody_reads_all_of_unacked_while_nothing_is_wrong(site: Site, process: Process) -> None:
    site.send(0)
    process.connect().receive(1)
    process.book.flush()
    before = _calls(site, "zscan")
    process.book.flush()
    assert _calls(site, "zscan") == before


def test_NEW_9_an_acknowledged_entry_that_reappears_is_acknowledged_again_and_does_not_run_again(
    site: Site, process: Process
) -> None:
    """Redis came back without its last moments."""
    site.send(0)
    receiver = process.connect()
    (message,) = receiver.receive(1)
    tag, raw = message.delivery_tag, site.raw.hget(site.unacked, message.delivery_tag)
    process.begin(message)
    process.finish(message)
    assert not site.entries()
    site.raw.hset(site.unacked, tag, raw)
    site.raw.zadd(site.index, {tag: 1.0})
    receiver.connection.close()
    process.book.flush()
    assert not site.everything() and not site.scores()
    assert process.book.is_empty


def test_NEW_9_an_entry_that_reappears_and_was_on_record_elsewhere_goes_back(
    site: Site, process: Process
) -> None:
    """It was parked in the moments that Redis has lost: nobody else knows it."""
    site.send(0)
    receiver = process.connect()
    (message,) = receiver.receive(1)
    tag, raw = message.delivery_tag, site.raw.hget(site.unacked, message.delivery_tag)
    message.mark_stored()
    message.ack()
    assert not site.entries()
    site.raw.hset(site.unacked, tag, raw)
    site.raw.zadd(site.index, {tag: 1.0})
    receiver.connection.close()
    process.book.flush()
    assert mids(site) == ["m0"] and not site.entries()
    assert process.book.is_empty


@pytest.mark.parametrize(("is_done", "late"), [(True, False), (True, True), (False, True)])
def test_NEW_9_what_is_on_record_elsewhere_and_acknowledged_after_an_outage_goes_back(
    site: Site, process: Process, line: TcpProxy, is_done: bool, late: bool
) -> None:
    """The record may be lost, and the loop says only after the outage what was decided before it."""
    site.send(0)
    receiver = process.connect()
    (message,) = receiver.receive(1)
    receiver.consumer.cancel()
    message.mark_stored()
    if is_done:
        message.mark_done()
    line.cut()
    for _ in range(2):
        with pytest.raises(book.AWAY):
            process.book.flush()
            process.book.renew()
    if not late:
        message.ack()
    line.heal()
    process.book.flush()
    if late:
        message.ack()
    assert mids(site) == ["m0"] and not site.entries()
    assert process.book.is_empty


def test_NEW_9_what_was_put_back_and_reappears_is_put_back_again(site: Site, process: Process) -> None:
    site.send(0)
    receiver = process.connect()
    (message,) = receiver.receive(1)
    tag, raw = message.delivery_tag, site.raw.hget(site.unacked, message.delivery_tag)
    receiver.connection.close()
    assert mids(site) == ["m0"]
    site.raw.delete("a")
    site.raw.hset(site.unacked, tag, raw)
    site.raw.zadd(site.index, {tag: 1.0})
    process.book.flush()
    assert mids(site) == ["m0"] and not site.entries()


def test_NEW_9_a_stray_goes_back_at_the_second_look_and_not_before(site: Site, process: Process) -> None:
    """It is in no channel, and nothing here works on it: it was dropped on its way to the pool."""
    site.send(0, 1)
    receiver = process.connect()
    stray, busy = receiver.receive(2)
    process.begin(stray, busy)
    receiver.connection.close()
    process.book.flush()
    process.in_use.discard(stray.delivery_tag)
    process.book.flush()
    assert len(site.entries()) == 2, "it may be between two hands at this moment"
    process.book.flush()
    assert mids(site) == ["m0"] and list(site.entries()) == [busy.delivery_tag]
    assert not stray.is_mine and busy.is_mine


def test_NEW_9_what_is_in_use_again_at_the_second_look_is_no_stray(site: Site, process: Process) -> None:
    site.send(0)
    receiver = process.connect()
    (message,) = receiver.receive(1)
    process.begin(message)
    receiver.connection.close()
    for _ in range(3):
        process.in_use.clear()
        process.book.flush()
        process.begin(message)
        process.book.flush()
    assert not site.waiting() and message.is_mine


def test_NEW_9_what_an_open_channel_holds_is_no_stray(site: Site, process: Process) -> None:
    site.send(0)
    process.connect().receive(1)
    for _ in range(3):
        process.book.flush()
    assert not site.waiting() and len(site.entries()) == 1


def test_NEW_9_a_channel_that_went_without_a_word_leaves_no_message_behind(
    site: Site, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.send(0)
    receiver = process.connect()
    receiver.receive(1)
    monkeypatch.setattr(type(receiver.channel), "leave", lambda self: None)
    receiver.connection.close()
    assert len(site.entries()) == 1
    process.book.flush()
    process.book.flush()
    assert mids(site) == ["m0"]


@pytest.mark.parametrize("lost", [False, True])
def test_NEW_9_what_is_done_and_not_acknowledged_yet_is_no_stray(
    site: Site, process: Process, line: TcpProxy, lost: bool
) -> None:
    """Celery acknowledges on its event loop, which may be waiting for a connection."""
    site.send(0)
    receiver = process.connect()
    (message,) = receiver.receive(1)
    process.begin(message)
    if lost:
        _cut(line, receiver)
    message.mark_done()
    assert message.went_back is False
    process.in_use.clear()
    line.heal()
    for _ in range(3):
        process.book.flush()
    assert not site.waiting(), "no copy of it comes"
    message.ack()
    assert not site.everything() and process.book.is_empty


def test_NEW_9_a_task_that_ends_after_its_message_went_back_is_told_so(site: Site, process: Process) -> None:
    site.send(0)
    receiver = process.connect()
    (message,) = receiver.receive(1)
    receiver.connection.close()
    message.mark_done()
    assert message.went_back is True
    message.ack()
    process.book.flush()
    assert site.everything() == ["m0"], "its copy is left alone"


def test_NEW_9_a_worker_that_leaves_while_redis_is_away_knows_that_it_holds_something(
    site: Site, process: Process, line: TcpProxy
) -> None:
    site.send(0, 1, 2)
    receiver = process.connect()
    begun, *_ = receiver.receive(3)
    process.begin(begun)
    _cut(line, receiver)
    assert process.books.leave_for_good() is False
    line.heal()
    assert process.books.leave_for_good() is True
    assert mids(site) == ["m0", "m1", "m2"] and site.keys() == {"a"}


def test_NEW_9_a_worker_that_owes_an_acknowledgement_does_not_leave_in_peace(
    site: Site, process: Process, line: TcpProxy
) -> None:
    site.send(0)
    receiver = process.connect()
    (message,) = receiver.receive(1)
    process.begin(message)
    line.cut()
    process.finish(message)
    assert process.books.leave_for_good() is False
    line.heal()
    assert process.books.leave_for_good() is True
    assert not site.everything()


def test_NEW_9_what_was_arriving_when_the_connection_was_lost_goes_back_with_the_rest(
    site: Site, process: Process, line: TcpProxy
) -> None:
    receiver = process.connect(["a"])
    receiver.drain(lambda: receiver.channel._announced)
    site.send(0, 1)
    receiver.receive(2)
    site.send(2, queue="c")
    site.raw.lmove("c", arriving_key(receiver.boot_id, "a"), "RIGHT", "LEFT")
    _cut(line, receiver)
    line.heal()
    process.book.flush()
    assert mids(site) == ["m0", "m1", "m2"], "what had arrived comes before it"
    assert site.keys() == {"a"} and process.book.is_empty


def test_NEW_9_what_was_arriving_keeps_a_worker_from_leaving_in_peace(
    site: Site, process: Process, line: TcpProxy
) -> None:
    """Even where that is all: somebody flushed the scripts between the two steps of receiving."""
    receiver = process.connect(["a"])
    receiver.drain(lambda: receiver.channel._announced)
    receiver.channel._finish_receiving()
    site.send(0, queue="c")
    site.raw.lmove("c", arriving_key(receiver.boot_id, "a"), "RIGHT", "LEFT")
    _cut(line, receiver)
    assert process.books.leave_for_good() is False
    line.heal()
    assert process.books.leave_for_good() is True
    assert mids(site) == ["m0"] and site.keys() == {"a"}


def test_NEW_9_nothing_of_a_channel_may_begin_any_more_before_its_messages_go_back(
    site: Site, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.send(0)
    receiver = process.connect()
    receiver.receive(1)
    seen: list[Any] = []
    monkeypatch.setattr(process.books, "before_return", lambda channel: seen.append(site.waiting()))
    receiver.connection.close()
    assert seen == [{}] and mids(site) == ["m0"]


def test_NEW_9_each_broker_has_a_book_of_its_own_and_one_that_is_away_keeps_the_other_from_nothing(
    site: Site, new_site: Callable[..., Site], line: TcpProxy
) -> None:
    far, near = new_site(line.url(site.url)), new_site()
    process = Process(far)
    site.send(0)
    near.send(1)
    receivers = [process.connect(), near.receiver(process.boot_id, books=process.books)]
    for receiver in receivers:
        receiver.receive(1)
    line.cut()
    assert process.books.leave_for_good() is False
    assert mids(near) == ["m1"] and len(site.entries()) == 1
    line.heal()
    assert process.books.leave_for_good() is True
    assert mids(site) == ["m0"]


# --- the same, cut off or killed after every single command ----------------------------------------


def _begin_a_mess(site: Site) -> tuple[Process, Receiver]:
    """A worker that holds one of each: running, acknowledged late, waiting, and two on their way to it."""
    site.raw.flushdb()
    site.send(*range(5))
    process = Process(site)
    receiver = process.connect(["a"])
    receiver.drain(lambda: receiver.channel._announced)
    running, done, *_ = receiver.receive(5)
    receiver.consumer.cancel()
    site.send(5, 6, queue="c")
    for _ in range(2):
        site.raw.lmove("c", arriving_key(process.boot_id, "a"), "RIGHT", "LEFT")
    process.begin(running, done)
    done.mark_done()
    return process, receiver


def _leave(process: Process, receiver: Receiver) -> None:
    receiver.connection.close()
    process.book.flush()


def test_NEW_9_cut_off_after_every_command_a_worker_puts_each_message_back_once(site: Site) -> None:
    for commands in range(120):
        process, receiver = _begin_a_mess(site)
        finished = True
        with killed_after(commands, ConnectionError):
            try:
                _leave(process, receiver)
            except ConnectionError:
                finished = False
        rest = [mid for mid in site.everything() if mid != "m1"]
        assert rest == ["m0", "m2", "m3", "m4", "m5", "m6"], f"after {commands} commands"
        process.book.flush()
        assert site.everything() == rest, f"the acknowledged one came back after {commands} commands"
        assert [entry[0]["headers"]["poison_mid"] for entry in site.entries().values()] == ["m0"]
        assert len(site.scores()) == 1 and sorted(mids(site)) == rest[1:]
        if finished:
            break
    else:
        raise AssertionError("it never got to its end")
    assert commands > 12


def test_NEW_9_killed_after_every_command_of_leaving_the_next_one_finishes_the_job(site: Site) -> None:
    wanted = [f"m{n}" for n in range(7)]
    for commands in range(120):
        process, receiver = _begin_a_mess(site)
        finished = False
        try:
            with killed_after(commands):
                receiver.connection.close()
                finished = process.books.leave_for_good()
        except Killed:
            rest = [mid for mid in site.everything() if mid != "m1"]
            assert rest == [mid for mid in wanted if mid != "m1"], f"after {commands} commands"
            receiver.channel.closed = True  # its process is gone, and closes nothing
            site.put_back(process.boot_id, ())
        left = site.everything()
        assert len(left) == len(set(left)) and {*left, "m1"} == {*wanted}, f"after {commands} commands"
        assert site.keys() == {"a"}
        if finished:
            break
    else:
        raise AssertionError("it never got to its end")
    assert commands > 12
