"""How each package is switched on in a worker, as its own manual says, and where it tells what it saw.

Where a package would send something to a server of its own, it writes a line into the file SEEN instead.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from celery import Celery, signals

from celery_poison import guarded


def tell(**what: Any) -> None:
    """One write: several processes share the file."""
    with open(os.environ["SEEN"], "ab", buffering=0) as file:
        file.write(json.dumps(what, default=str).encode() + b"\n")


def _text(entry: dict[str, Any]) -> str:
    """The line of a log as Sentry shows it: it is sent its pieces."""
    return str(entry.get("formatted") or entry.get("message", ""))


def sentry() -> None:
    import sentry_sdk
    from sentry_sdk.integrations.celery import CeleryIntegration
    from sentry_sdk.transport import Transport

    class Lines(Transport):
        def capture_envelope(self, envelope: Any) -> None:
            for item in envelope.items:
                event = item.payload.json or {}
                tell(
                    kind=item.type,
                    task=event.get("transaction"),
                    trace=event.get("contexts", {}).get("trace", {}).get("trace_id"),
                    message=_text(event.get("logentry") or {}),
                    error=[one["type"] for one in event.get("exception", {}).get("values", ())],
                )

    sentry_sdk.init(
        dsn="http://key@127.0.0.1:9/1",
        transport=Lines,
        traces_sample_rate=1.0,
        integrations=[CeleryIntegration()],
    )


def opentelemetry() -> None:
    @signals.worker_process_init.connect(weak=False)
    def _begin(**_: Any) -> None:
        from opentelemetry import trace
        from opentelemetry.instrumentation.celery import CeleryInstrumentor
        from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

        class Lines(SpanExporter):
            def export(self, spans: Any) -> SpanExportResult:
                for span in spans:
                    self._tell(span)
                return SpanExportResult.SUCCESS

            @staticmethod
            def _tell(span: ReadableSpan) -> None:
                context = span.get_span_context()
                tell(span=span.name, trace=f"{context.trace_id:032x}" if context else "", pid=os.getpid())

        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(Lines()))
        trace.set_tracer_provider(provider)
        CeleryInstrumentor().instrument()


def ddtrace() -> None:
    import ddtrace
    from ddtrace.trace import Span, TraceFilter, tracer

    class Lines(TraceFilter):
        def process_trace(self, trace: list[Span]) -> None:
            for span in trace:
                tell(span=span.name, task=span.resource, id=span.get_tag("celery.id"), error=span.error)

    tracer.configure(trace_processors=[Lines()])
    ddtrace.patch(celery=True)


def singleton(app: Celery) -> None:
    from celery_singleton import Singleton

    @guarded
    @app.task(base=Singleton, bind=True, shared=False, name="beside.once")
    def once(self: Any, what: str) -> str:
        from tests.apps.marks import marks

        here = marks(os.environ["MARKS_URL"])
        here.leave("once", self.request.id, "start", what)
        if what == "dies" and not here.repaired:
            os.kill(os.getpid(), 9)
        return what


def django(app: Celery) -> None:
    @guarded
    @app.task(shared=False, name="beside.connects")
    def connects() -> bool:
        """Whether a connection is open that an earlier task has left: Celery's fixup closes it."""
        from django.db import connection

        was_open = connection.connection is not None
        connection.ensure_connection()
        return was_open


def batches(app: Celery) -> None:
    from celery_batches import Batches

    @app.task(base=Batches, shared=False, name="beside.many", flush_every=5, flush_interval=1)
    def many(requests: list[Any]) -> None:
        tell(batch=sorted(request.args[0] for request in requests))


#: Before there is an app; and what is done with it afterwards.
BEFORE: dict[str, Callable[[], None]] = {"sentry": sentry, "opentelemetry": opentelemetry, "ddtrace": ddtrace}
AFTER: dict[str, Callable[[Celery], None]] = {
    "singleton": singleton,
    "batches": batches,
    "django": django,
}
