"""What never reaches a task: Celery acknowledges and drops it, here it is kept in quarantine first (NEW-5).

Celery's own method is called afterwards, so that everybody hears what they would hear without us: log, result
backend, events, signals. Only its rejection of the message becomes an acknowledgement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from traceback import walk_tb
from types import CodeType
from typing import Any

from celery.app.task import Context
from celery.exceptions import InvalidTaskError
from celery.utils.log import get_logger
from celery.utils.time import maybe_iso8601, maybe_make_aware, timezone
from celery.worker import state
from kombu.asynchronous.timer import to_timestamp
from kombu.exceptions import ContentDisallowed, DecodeError

from celery_poison import causes
from celery_poison.basics.calling import tell
from celery_poison.basics.text import clean
from celery_poison.broker.sealed import ITEM, Sealed
from celery_poison.errors import LedgerUnavailable, QuarantineFull
from celery_poison.keep.stored_message import Identity, identity_of, word
from celery_poison.model import Phase, Start
from celery_poison.worker.delivery import size_of
from celery_poison.worker.pool_processes import forget_unsent
from celery_poison.worker.quarantine_writer import QuarantineWriter
from celery_poison.worker.sending import SentRequest
from celery_poison.worker.site import Site

logger = get_logger("celery_poison")

#: Characters of an error that a reason tells.
_LENGTH = 200

#: Seconds that no timer can be set to.
_FOR_EVER = 1e9

#: What Celery does with such a message.
Drop = Callable[[], object]


@dataclass(frozen=True, slots=True)
class _Case:
    """One message that no task takes.

    Attributes:
        epoch: number of the broker connection it came by.
        note: more about its reason.
    """

    message: Any
    identity: Identity
    start: Start
    cause: str
    error: BaseException | None
    drop: Drop
    epoch: int
    note: str = ""

    @property
    def reason(self) -> str:
        what = causes.describe(self.cause)
        if self.cause == causes.UNKNOWN_TASK:
            return f"{what}: {clean(self.identity.task)}{self.note}"
        packed = self.message.headers.get("compression") if self.cause == causes.UNDECODABLE else None
        how = "" if packed is None else f", compressed ({str(packed)[:40]})"
        return clean(f"{what}{_described(self.error)}{how}")[:_LENGTH]


class _Unfit(InvalidTaskError):
    """A sentence of our own, with nothing of the message in it."""


def _described(error: BaseException | None) -> str:
    """Return the class of an error for a reason: its text may quote the body.

    Reasons stand in the journal and in lists, where ``poison_redact`` hides nothing.
    """
    if error is None:
        return ""
    if isinstance(error, _Unfit):
        return f": {error}"
    behind = error.__cause__ or error.__context__
    told = error if isinstance(error, DecodeError) and behind is None else behind or error
    return f": {type(told).__name__}"


def _form(value: object) -> str:
    """Return type and length of a value, and nothing of what it holds."""
    with suppress(TypeError):
        return f"{type(value).__name__} of length {len(value)}"  # type: ignore[arg-type]
    return type(value).__name__


@dataclass(eq=False, repr=False)
class Unprocessable:
    """Stands in for a consumer's ways to drop a message, on the event loop.

    Attributes:
        handler: Celery's own ``on_task_received``, for the present connection.
        past: the code that each request of Celery's passes: an error behind that tells of no message.
        postpone: :class:`.Postponing`.
    """

    site: Site
    writer: QuarantineWriter
    handler: Callable[[Any], Any] = field(init=False)
    past: CodeType | None = field(default=None, init=False)
    postpone: Callable[[Any, Identity, Start, int], str | None] = field(
        default=lambda *message: "", init=False
    )

    def hook_into(self, consumer: Any) -> None:
        """Stand in for the consumer's own methods, before it makes its task handler."""
        if not self.site.settings.keep_unprocessable:
            return
        unknown, invalid = consumer.on_unknown_task, consumer.on_invalid_task
        foreign, broken = consumer.on_unknown_message, consumer.on_decode_error

        def on_unknown_task(body: Any, message: Any, exc: Exception) -> None:
            self._take(causes.UNKNOWN_TASK, message, exc, partial(unknown, body, message, exc))

        def on_unknown_message(body: Any, message: Any) -> None:
            self._take(causes.NOT_A_TASK, message, None, partial(foreign, body, message))

        def on_invalid_task(body: Any, message: Any, exc: Exception) -> None:
            cause = causes.MALFORMED if isinstance(exc, InvalidTaskError) else causes.UNDECODABLE
            self._take(cause, message, exc, partial(invalid, body, message, exc))

        def on_decode_error(message: Any, exc: Exception) -> None:
            cause = causes.NOT_A_TASK if message.content_type == ITEM else causes.UNDECODABLE
            self._take(cause, message, exc, partial(broken, message, exc))

        consumer.on_unknown_task, consumer.on_invalid_task = on_unknown_task, on_invalid_task
        consumer.on_unknown_message, consumer.on_decode_error = on_unknown_message, on_decode_error

    def take(self, message: Any) -> Any:
        """Give a message to Celery's handler; one of which no request can be made is kept.

        Plain Celery ends there, or connects anew without end: on Redis a ``KeyError`` counts as a lost
        connection.
        """
        if not self.site.settings.keep_unprocessable:
            return self.handler(message)
        headers = message.headers
        if headers.get("eta") is not None and (fault := self._fault_of_eta(message)):
            return self._take(causes.MALFORMED, message, fault, partial(self._refuse, message, fault))
        if fault := _fault_of(headers):
            return self._take(causes.MALFORMED, message, fault, message.reject)
        try:
            if error := self._fault_of_call(message):
                return self._turn_away(message, error)
            return self.handler(message)
        except Exception as error:
            if not self.takes_broken(message, error):
                raise

    def takes_broken(self, message: Any, error: Exception) -> bool:
        """Keep a message that Celery's handler failed at; False where the message is not to blame."""
        if not self._is_to_blame(message, error):
            return False
        # Celery came as far as its body, and no farther.
        is_unopened = isinstance(message.headers.get("task"), str) and (
            getattr(message, "_decoded_cache", None) is None
        )
        cause = causes.UNDECODABLE if is_unopened else causes.MALFORMED
        self._take(cause, message, error, partial(_raise, error))
        return True

    def refuse(self, message: Any, error: Exception) -> None:
        """Keep a message of a guarded task that cannot be looked up; dropped where none are kept."""

        def drop() -> None:  # late: once it is kept, this acknowledges it
            message.reject_log_error(logger, self.site.loop.consumer.connection_errors)

        self._take(causes.MALFORMED, message, error, drop)

    def takes_back(self, request: Any, error: Exception) -> bool:
        """Keep what no pool takes; its place there and its prefetch credit are free again.

        Plain Celery ends there. Whoever gives a place in the pool back calls this, too, and would fail. False
        where the request is not to blame.
        """
        if not self.site.settings.keep_unprocessable or self._is_foreign(error):
            return False
        if request.time_start is not None:  # solo has run it meanwhile: other pools log such an end
            logger.exception("celery_poison: the end of %s cannot be recorded", clean(request.id))
            return True
        consumer = self.site.loop.consumer
        forget_unsent(consumer.pool, request)
        state.task_ready(request)
        semaphore = getattr(consumer.controller, "semaphore", None)
        if semaphore is not None:
            self.site.loop.call_in_loop(semaphore.release)
        if isinstance(request, SentRequest):
            request.pool_refused()
        self._take(causes.MALFORMED, request.message, error, request.message.reject)
        return True

    def _is_foreign(self, error: Exception) -> bool:
        """Whether an error tells of a lost connection, or of memory, and of no message."""
        consumer = self.site.loop.consumer
        lost = *consumer.connection_errors, *consumer.channel_errors, MemoryError
        return isinstance(error, lost) and not isinstance(error, KeyError)

    def _is_to_blame(self, message: Any, error: Exception) -> bool:
        """Whether an error came of the message, and not of a lost connection or of who was to run it."""
        if self._is_foreign(error):
            return False
        passed = any(frame.f_code is self.past for frame, _ in walk_tb(error.__traceback__))
        return not message.acknowledged and not passed

    def _fault_of_eta(self, message: Any) -> Exception | None:
        """Return the error of a time that Celery can read, and not wait for; it drops such a message."""
        app = self.site.app
        try:
            eta = maybe_iso8601(message.headers["eta"])
        except Exception:
            return None  # Celery finds that, and says so
        try:
            aware = maybe_make_aware(eta, app.conf.timezone)
            to_timestamp(timezone.to_system(aware) if app.uses_utc_timezone() else aware)
        except (OverflowError, ValueError) as error:
            return error
        except Exception:
            return None
        return None

    def _turn_away(self, message: Any, error: Exception) -> Any:
        """Do what Celery does with what it cannot read; what it trips over later is such a one, too."""
        if isinstance(error, DecodeError):
            return self.site.loop.consumer.on_decode_error(message, error)
        if isinstance(error, InvalidTaskError) and self.site.settings.observe_only:
            return self._take(causes.MALFORMED, message, error, partial(self.handler, message))
        return self.site.loop.consumer.on_invalid_task(None, message, error)

    def _fault_of_call(self, message: Any) -> DecodeError | ContentDisallowed | InvalidTaskError | None:
        """Return the fault of a call for which Celery drops the message, and stores nothing; None: none."""
        task = message.headers.get("task")
        if not isinstance(task, str) or task not in self.site.app.tasks:
            return None  # not decoded: it is kept as it is
        try:
            payload = message.payload
        except (DecodeError, ContentDisallowed) as error:
            return error  # it cannot be asked again: it is unpacked once
        if isinstance(payload, Mapping) and "args" in payload:
            return None  # Celery takes it as a call of protocol 1
        try:
            _, kwargs, embed = payload
        except (TypeError, ValueError):
            return None  # Celery finds that, and says so
        if not isinstance(kwargs, Mapping):
            return _Unfit(f"the keyword arguments are no mapping: {_form(kwargs)}")
        if embed and not isinstance(embed, Mapping):
            return _Unfit(f"the options are no mapping: {_form(embed)}")
        return None

    def _refuse(self, message: Any, error: Exception) -> None:
        """Fail a task whose time cannot be waited for, as Celery does."""
        headers, properties = message.headers, message.properties
        task = self.site.app.tasks.get(headers.get("task"))
        logger.error("celery_poison: Couldn't convert ETA %r: %r", headers["eta"], error)
        if task is not None and isinstance(headers.get("id"), str):
            who = {name: properties.get(name) for name in ("reply_to", "correlation_id")}
            request = Context({**headers, **who, "delivery_info": {}})
            stored = not (request.ignore_result or task.ignore_result) or task.store_errors_even_if_ignored
            task.backend.mark_as_failure(headers["id"], error, request=request, store_result=stored)
        message.reject_log_error(logger, self.site.loop.consumer.connection_errors)

    # --- keeping -------------------------------------------------------------------------------

    def _take(self, cause: str, message: Any, error: BaseException | None, drop: Drop) -> None:
        try:
            identity, start = self._noted(message)
            case = _Case(message, identity, start, cause, error, drop, self.site.loop.epoch)
        except Exception as failure:
            self.site.complain(failure)
            drop()
            return
        if self.site.settings.observe_only:
            note = case.message, case.start, case.identity, case.cause, case.reason
            self.site.background.do(partial(self.writer.would_keep, *note), lambda: False)
            drop()
        else:
            self.site.background.do(partial(self._keep, case))

    def _noted(self, message: Any) -> tuple[Identity, Start]:
        """Return how it is called, and its delivery: that of the admission, if it came as far as that."""
        identity, delivery = identity_of(message), getattr(message, "poison", None)
        if delivery is not None:
            # Its admit mark stays until it is kept: whoever lets it in must not write another entry.
            start = delivery.start = delivery.start.in_phase(Phase.CLAIMED)
            return Identity(start.id, delivery.mid, start.task, by_content=False), start
        queue = getattr(message, "queue_name", None) or word(message.delivery_info.get("routing_key"))
        start = Start.of(
            self.site.me.next_token(),
            self.site.me.worker,
            identity.id,
            identity.task,
            queue=queue,
            phase=Phase.CLAIMED,
            pid=self.site.me.pid,
            payload_bytes=size_of(message),
        )
        return identity, start

    def _keep(self, case: _Case) -> None:
        """Keep it first; what Celery does with it comes afterwards (in the background thread)."""
        if case.epoch != self.site.loop.epoch:
            return  # the broker delivers it again
        is_kept, limit = False, self.site.settings.keep_unprocessable
        try:
            if case.cause == causes.UNKNOWN_TASK:
                note = self._postpone(case)
                if note is None:
                    return
                case = replace(case, note=note)
            self.writer.keep(case.message, case.start, case.identity, case.cause, case.reason, limit)
            if isinstance(case.message, Sealed):
                case.message.mark_stored()
            is_kept = True
            if case.cause == causes.UNKNOWN_TASK:
                about = case.message, case.identity, case.start.queue, case.reason
                tell(self.site.extensions.unknown_task, self.site.complain, *about)
        except QuarantineFull as error:  # as plain Celery: that is no fault of the ledger's
            logger.warning("celery_poison: a message is not kept, %s: %s", error, case.reason)
        except LedgerUnavailable:
            raise  # it stays with the broker until the ledger is back
        except Exception as error:
            self.site.complain(error)
        self.site.loop.call_in_loop(partial(self._finish, case, is_kept=is_kept))

    def _postpone(self, case: _Case) -> str | None:
        """Ask :attr:`postpone`; a fault of it must not cost the message, which is kept then."""
        try:
            return self.postpone(case.message, case.identity, case.start, case.epoch)
        except LedgerUnavailable:
            raise
        except Exception as error:
            self.site.complain(error)
            return ""

    def _finish(self, case: _Case, *, is_kept: bool) -> None:
        """Do what Celery does with it, and acknowledge it in any case."""
        if case.epoch != self.site.loop.epoch:
            return
        message = case.message
        if is_kept:
            # It is not to be a dead letter of the broker's, too.
            message.reject_log_error = message.ack_log_error
        try:
            _while_handling(case.error, case.drop)
        except Exception:
            logger.exception("celery_poison: Celery has no way to drop such a message: %s", case.reason)
        finally:
            if not message.acknowledged:
                message.ack_log_error(logger, self.site.loop.consumer.connection_errors)


def _fault_of(headers: Any) -> InvalidTaskError | None:
    """Return the fault that stops Celery in its own loop, long after it has taken the message."""
    limits, shadow = headers.get("timelimit"), headers.get("shadow")
    if limits and not _are_limits(limits):
        return _Unfit(f"invalid timelimit: {_form(limits)}")
    if isinstance(shadow, (list, dict)):  # it counts tasks by their names
        return _Unfit(f"invalid shadow: {_form(shadow)}")
    return None


def _are_limits(found: Any) -> bool:
    """Whether the pool can hold a task to these limits: it compares them long after it has taken the task."""
    if not isinstance(found, (list, tuple)) or len(found) != 2:
        return False
    return all(each is None or (isinstance(each, (int, float)) and 0 <= each < _FOR_EVER) for each in found)


def _raise(error: BaseException) -> None:
    raise error


def _while_handling(error: BaseException | None, drop: Drop) -> None:
    """Call Celery's method as Celery does: it logs the error that is being handled."""
    if error is None:
        drop()
        return
    try:
        raise error
    except type(error):
        drop()
