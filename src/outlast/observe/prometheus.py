"""
Prometheus metrics, kept by the official client. Needs the extra ``metrics``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from outlast.observe.events import RunFinished
from outlast.observe.metrics import METRICS, Samples, install_once, keeping

try:
    import prometheus_client
except ModuleNotFoundError as missing:
    if missing.name != "prometheus_client":
        raise
    raise ModuleNotFoundError(
        "outlast.observe.prometheus needs an extra: pip install 'outlast[metrics]'", name=missing.name
    ) from None

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from prometheus_client import CollectorRegistry
    from prometheus_client import Metric as PrometheusMetric

    from outlast.observe import Hook
    from outlast.observe.events import Event
    from outlast.observe.metrics import Metric, Sample

__all__ = ["install", "serve"]


def install(registry: CollectorRegistry | None = None) -> Callable[[], None]:
    """
    Count what happens from now on, in the client's own registry or in this one. Call what is returned to take the
    metrics out again. Installing twice in one registry counts once; the metrics stay until both are taken out.
    """
    target = prometheus_client.REGISTRY if registry is None else registry
    return install_once(("prometheus", target), lambda: _make(target))


def serve(host: str, port: int) -> tuple[int, Callable[[], None]]:
    """
    Count in the client's own registry, and serve it at this address. The port, which is a free one for 0; and what ends
    both. `OSError` if that cannot be had.
    """
    server, thread = prometheus_client.start_http_server(port, addr=host)
    uninstall = install()

    def end() -> None:
        uninstall()
        server.shutdown()
        server.server_close()
        thread.join()

    return server.server_port, end


def _make(registry: CollectorRegistry) -> tuple[Hook, Callable[[], None]]:
    made: dict[str, prometheus_client.Counter | prometheus_client.Gauge] = {}
    samples = Samples()
    # Then nobody reads this process itself, but what it has written down.
    shared = "PROMETHEUS_MULTIPROC_DIR" in os.environ

    def clean() -> None:
        for collector in made.values():
            registry.unregister(collector)

    try:
        for metric in METRICS:
            made[metric.name] = _collector(metric, registry)
    except ValueError:  # somebody else's metric has the name: all or nothing
        clean()
        raise

    def refresh() -> None:
        asked = {name: collector for name, collector in made.items() if isinstance(collector, _Asked)}
        for collector in asked.values():
            collector.clear()
        for sample in samples.asked():
            asked[sample.metric.name].labels(**sample.labels).set(sample.value)

    for collector in made.values():
        if isinstance(collector, _Asked):
            collector.refresh = refresh

    def keep(found: Iterable[Sample]) -> None:
        for sample in found:
            collector = made[sample.metric.name].labels(**sample.labels)
            if isinstance(collector, prometheus_client.Counter):
                collector.inc(sample.value)
            else:
                collector.set(sample.value)

    count, end = keeping(samples, keep, clean)

    def hook(event: Event) -> None:
        if shared and isinstance(event, RunFinished):
            refresh()
        count(event)

    return hook, end


class _Asked(prometheus_client.Gauge):
    """A gauge whose values are asked for when it is read."""

    refresh: Callable[[], None] | None = None  # of the gauge itself; those for the values of its labels have none

    def collect(self) -> Iterable[PrometheusMetric]:
        """The values as they are now."""
        if self.refresh is not None:
            self.refresh()
        return super().collect()


def _collector(metric: Metric, registry: CollectorRegistry) -> prometheus_client.Counter | prometheus_client.Gauge:
    if metric.kind == "counter":
        return prometheus_client.Counter(metric.name, metric.about, metric.labels, registry=registry)
    if metric.asked:
        # All of them read the same store: the newest answer counts.
        return _Asked(metric.name, metric.about, metric.labels, registry=registry, multiprocess_mode="livemostrecent")
    # Where worker processes share their numbers: how many of those not marked as dead are in this state.
    return prometheus_client.Gauge(
        metric.name, metric.about, metric.labels, registry=registry, multiprocess_mode="livesum"
    )
