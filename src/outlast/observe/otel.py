"""
OpenTelemetry, through its API alone: events on the current span, and the metrics. Needs the extra ``otel``.

No span is made for an attempt: the client libraries make one for each request already, and the events say which of them
failed and why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlast.observe.metrics import METRICS, Samples, install_once, keeping

try:
    from opentelemetry import metrics, trace
    from opentelemetry.metrics import Observation
except ModuleNotFoundError as missing:
    if missing.name not in {"opentelemetry", "opentelemetry.metrics", "opentelemetry.trace"}:
        raise
    raise ModuleNotFoundError(
        "outlast.observe.otel needs an extra: pip install 'outlast[otel]'", name=missing.name
    ) from None

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from opentelemetry.metrics import CallbackOptions, MeterProvider
    from opentelemetry.trace import TracerProvider

    from outlast.observe import Hook
    from outlast.observe.events import Event
    from outlast.observe.metrics import Metric, Sample

__all__ = ["install"]

_SCOPE = "outlast"


def install(
    tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
) -> Callable[[], None]:
    """
    Tell the current span and the meters of this provider, or of the global one, what happens from now on. With a
    `tracer_provider`, an event outside any span becomes a span of its own, without length; otherwise it is only
    counted. Call what is returned to stop. Installing twice tells and counts once.
    """
    meters = None if meter_provider is metrics.get_meter_provider() else meter_provider
    parts = [
        install_once(("otel span",), lambda: (_on_current_span, _nothing)),
        install_once(("otel meter", meters), lambda: _counting(meters)),
    ]
    if tracer_provider is not None:
        parts.append(install_once(("otel tracer", tracer_provider), lambda: (_outside(tracer_provider), _nothing)))

    def uninstall() -> None:
        for part in parts:
            part()

    return uninstall


def _nothing() -> None:
    """The API cannot take an instrument back: it stays with its provider, and its numbers stand still."""


def _attributes(event: Event) -> dict[str, str | int | float]:
    """The event's fields that say something. Texts in events are sanitised where the events are made."""
    fields = event.as_dict()
    said = {f"outlast.{name}": fields[name] for name in fields if name not in {"event", "ts"}}
    # A text that cannot be encoded would cost the exporter its whole batch.
    return {
        name: value.encode(errors="replace").decode() if isinstance(value, str) else value
        for name, value in said.items()
        if value is not None
    }


def _nanoseconds(event: Event) -> int:
    return int(event.ts.timestamp() * 1_000_000) * 1000


def _on_current_span(event: Event) -> None:
    span = trace.get_current_span()
    if span.is_recording():
        span.add_event(event.name, _attributes(event), timestamp=_nanoseconds(event))


def _outside(provider: TracerProvider) -> Hook:
    tracer = provider.get_tracer(_SCOPE)

    def tell(event: Event) -> None:
        # A span that is there and does not record was left out on purpose, by sampling.
        if not trace.get_current_span().get_span_context().is_valid:
            at = _nanoseconds(event)
            tracer.start_span(event.name, attributes=_attributes(event), start_time=at).end(at)

    return tell


def _counting(provider: MeterProvider | None) -> tuple[Hook, Callable[[], None]]:
    meter = metrics.get_meter(_SCOPE, meter_provider=provider)
    samples = Samples()
    counters = {m.name: meter.create_counter(m.name, description=m.about) for m in METRICS if m.kind == "counter"}
    gauges = {
        m.name: meter.create_gauge(m.name, description=m.about) for m in METRICS if m.kind == "gauge" and not m.asked
    }
    installed = [True]

    def asking(metric: Metric) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def ask(_: CallbackOptions) -> Iterable[Observation]:
            found = samples.asked() if installed else ()
            return [Observation(sample.value, sample.labels) for sample in found if sample.metric is metric]

        return ask

    for asked in METRICS:
        if asked.asked:
            meter.create_observable_gauge(asked.name, callbacks=[asking(asked)], description=asked.about)

    def keep(found: Iterable[Sample]) -> None:
        for sample in found:
            name = sample.metric.name
            if name in counters:
                counters[name].add(sample.value, sample.labels)
            else:
                gauges[name].set(sample.value, sample.labels)

    return keeping(samples, keep, installed.clear)
