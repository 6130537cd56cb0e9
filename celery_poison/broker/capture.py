"""Takes what Celery publishes, at the last step before the broker, in the caller's call (TP1-1).

Every way to publish ends in ``app.amqp.send_task_message``: ``delay``, ``apply_async``, ``send_task``,
canvas, retries, beat. It is given a producer that serialises as kombu does, and hands over the
message instead of sending it. All signals of Celery are sent as ever; the relay sends ``task-sent``.

``app.send_task`` takes a producer from the pool before that, and waits while all are in use: so it is given
one that is taken when it is needed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from celery import Celery
from kombu import Producer
from kombu.utils import json as kombu_json

from celery_poison.headers import MARK, mid_of
from celery_poison.rules.reports import ReportedMessage
from celery_poison.upstream import hooks


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A message that Celery has serialised, routed and stamped.

    Attributes:
        exchange, routing_key: where it is published to.
        declare: a queue of the app that is declared first; empty: none.
        body: serialised, and compressed where that was wanted.
        headers, properties: plain data; kombu's JSON keeps dates, bytes and UUIDs apart.
        at: when it was stored, in seconds since 1970.
        event: fields of the event ``task-sent``, which the relay sends; None: nobody wants it.
        tied: it leaves with the success of a task (transaction-synchronous).
    """

    task: str
    id: str
    mid: str
    exchange: str
    routing_key: str
    declare: str
    body: bytes
    content_type: str
    content_encoding: str
    headers: Mapping[str, Any]
    properties: Mapping[str, Any]
    at: float = field(default_factory=time.time)
    event: Mapping[str, Any] | None = None
    tied: bool = False

    @property
    def queue(self) -> str:
        """Its destination: all messages of one destination are sent in their order."""
        if not self.exchange:
            return self.routing_key
        return self.declare or f"{self.exchange}/{self.routing_key}"

    def as_tied(self) -> Outgoing:
        """Return the same message as one of those that leave with the success of a task."""
        return replace(self, tied=True)

    def as_dict(self) -> dict[str, Any]:
        """Return the message for display: everything but the body, which is not decoded here."""
        told = asdict(self)
        return {**told, "queue": self.queue, "body": None, "payload_bytes": len(self.body)}


def reported(outgoing: Outgoing) -> ReportedMessage:
    """Return a message that has not left, as reports show it."""
    return ReportedMessage.of(
        outgoing.headers, outgoing.body, outgoing.content_type, mid=outgoing.mid, queue=outgoing.queue
    )


#: What ``kombu_json.loads`` makes anew for each text.
_read_kombus = json.JSONDecoder(object_hook=kombu_json.object_hook).decode


def read_json(text: str | bytes) -> Any:
    """Decode JSON that kombu wrote: headers and properties are again as they were.

    Raises:
        ValueError: it is no JSON.
    """
    try:
        return _read_kombus(text if isinstance(text, str) else text.decode())
    except Exception:  # somebody's own words that look like kombu's, and are not
        return json.loads(text)


def identity(headers: Mapping[str, Any], body: Any, task: str) -> tuple[str, str]:
    """Return task id and mid of a message that Celery is about to publish."""
    id = headers.get("id") or (body.get("id") if isinstance(body, dict) else None) or ""
    return str(id), mid_of({"id": id, "task": task, **headers})


# --- how it is taken ------------------------------------------------------------------------------------

#: Takes a message; False: it could not, and the message is to be sent directly.
Sink = Callable[[Outgoing], bool]
#: Says who takes a message of this task (None: nobody), given what ``apply_async(outbox=...)`` said.
Choose = Callable[[str, bool | None], Sink | None]

#: Called with producer, message and options of what is about to be sent; raises to have it not sent.
Admit = Callable[[Any, Any, Mapping[str, Any]], object]

#: Whether limits hold in this context; None: as for everybody who publishes.
limited: ContextVar[bool | None] = ContextVar("poison_limited", default=None)

#: In this context everything that is published goes to this sink: what is tied to the success of a task.
captured_by: ContextVar[Sink | None] = ContextVar("poison_captured_by", default=None)
#: In this context nothing is tied to a transaction of the user's database either.
at_once: ContextVar[bool] = ContextVar("poison_at_once", default=False)


@contextmanager
def _holding(variable: ContextVar[Any], value: object) -> Iterator[None]:
    before = variable.set(value)
    try:
        yield
    finally:
        variable.reset(before)


def captured(sink: Sink | None) -> AbstractContextManager[None]:
    """Hand what is published in here to ``sink``."""
    return _holding(captured_by, sink)


def exempt() -> AbstractContextManager[None]:
    """Lift the limits from the messages published inside, however many wait in their queues."""
    return _holding(limited, False)


@contextmanager
def sent_at_once() -> Iterator[None]:
    """Send the messages published inside at once, tied to nothing: they stand for one that was accepted."""
    with _holding(at_once, True), captured(None), exempt():
        yield


def capture(app: Celery, choose: Choose, admit: Admit) -> None:
    """Let ``choose`` say what of ``app`` is taken, ``admit`` what is sent; once the app is configured."""
    if not hooks.fits(hooks.Area.OUTBOX):
        return
    if app.configured:
        _wrap(app, choose, admit)
    else:
        app.on_after_configure.connect(lambda sender, **_: _wrap(sender, choose, admit), weak=False)


def _wrap(app: Celery, choose: Choose, admit: Admit) -> None:
    amqp: Any = app.amqp
    made = vars(amqp).get("send_task_message")
    if getattr(made, "takes", False):  # configured anew
        return
    plain: list[Callable[..., Any]] = [made] if made else []

    def send_task_message(producer: Any, name: str, message: Any, **options: Any) -> Any:
        if not plain:
            plain.append(amqp._create_task_sender())
        asked = options.pop("outbox", None)
        sink = captured_by.get() or choose(name, asked)
        if sink is None:
            admit(producer, message, options)
            return plain[0](producer, name, message, **options)
        taker = _Taker(app, producer, name, message.sent_event, sink, retry=options.pop("retry", None))
        return plain[0](taker, name, message._replace(sent_event=None), **options, retry=False)

    send_task_message.takes = True  # type: ignore[attr-defined]
    amqp.send_task_message = send_task_message
    _wrap_pool(app, choose)


def _wrap_pool(app: Any, choose: Choose) -> None:
    """Let nobody whose message is taken wait for those whose messages the broker does not take (TP1-1)."""
    plain = app.send_task

    def send_task(name: str, args: Any = None, kwargs: Any = None, *rest: Any, **options: Any) -> Any:
        own = rest or any(options.get(given) for given in ("producer", "publisher", "connection"))
        if own or not (captured_by.get() or choose(name, options.get("outbox"))):
            return plain(name, args, kwargs, *rest, **options)
        with ExitStack() as taken:
            return plain(name, args, kwargs, **{**options, "producer": _Later(app, taken)})

    app.send_task = send_task


class _Later:
    """A producer that is taken from the app's pool when something is asked of it.

    Attributes:
        connection: one that is not open; Celery asks it which errors are the broker's.
    """

    def __init__(self, app: Any, taken: ExitStack) -> None:
        self._app = app
        self._taken = taken
        self._real: Any = None
        self.connection = app.amqp.producer_pool.connections.connection

    def __getattr__(self, name: str) -> Any:
        if self._real is None:
            self._real = self._taken.enter_context(self._app.producer_or_acquire())
        return getattr(self._real, name)


class _Taker(Producer):  # type: ignore[misc, unused-ignore]
    """A producer without a broker: it hands over one message.

    Args:
        real: the producer that sends the message if nobody takes it.
        retry: whether that one tries again; None: as ``task_publish_retry`` says.
    """

    def __init__(
        self, app: Celery, real: Any, task: str, event: Any, sink: Sink, *, retry: bool | None
    ) -> None:
        super().__init__(None)
        self._app = app
        self._real = real
        self._task = task
        self._event = event
        self._sink = sink
        self._retry = retry
        self._policy: Any = None
        self._id = self._mid = ""

    def publish(self, body: Any, *args: Any, **options: Any) -> Any:
        self._id, self._mid = identity(options.get("headers") or {}, body, self._task)
        self._policy = options.get("retry_policy")
        return super().publish(body, *args, **options)

    def _publish(
        self,
        body: Any,
        priority: int,
        content_type: str,
        content_encoding: str,
        headers: dict[str, Any],
        properties: dict[str, Any],
        routing_key: str,
        mandatory: bool,
        immediate: bool,
        exchange: str,
        declare: list[Any],
        *rest: Any,
    ) -> None:
        address: dict[str, Any] = {"exchange": exchange or "", "routing_key": routing_key or ""}
        outgoing = Outgoing(
            task=self._task,
            id=self._id,
            mid=self._mid,
            **address,
            declare=next((str(each.name) for each in declare if hasattr(each, "routing_key")), ""),
            body=body if isinstance(body, bytes) else str(body).encode("utf-8", "surrogatepass"),
            content_type=content_type,
            content_encoding=content_encoding,
            headers=headers,
            properties={**_plain(properties), "priority": priority},
            event=self._event and {**self._event, **address},
        )
        if not self._sink(outgoing):
            self._send(outgoing, body, declare)

    def _send(self, outgoing: Outgoing, body: Any, declare: list[Any]) -> None:
        """Send it as without an outbox. It may be stored all the same: so it is looked up before it runs."""
        properties = dict(outgoing.properties)
        expiration = properties.pop("expiration", None)
        self._real.publish(
            body,
            exchange=outgoing.exchange,
            routing_key=outgoing.routing_key,
            declare=declare,
            content_type=outgoing.content_type,
            content_encoding=outgoing.content_encoding,
            headers={**outgoing.headers, MARK: 1},
            expiration=None if expiration is None else int(expiration) / 1000,
            retry=self._app.conf.task_publish_retry if self._retry is None else self._retry,
            retry_policy=self._policy,
            **properties,
        )


def _plain(properties: dict[str, Any]) -> dict[str, Any]:
    """Return the properties as data; a queue that answers are sent to is told by its name."""
    plain = {name: value for name, value in properties.items() if value is not None}
    if "reply_to" in plain:
        plain["reply_to"] = str(getattr(plain["reply_to"], "name", plain["reply_to"]))
    return plain
