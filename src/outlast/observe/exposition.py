"""
Metrics as the text that Prometheus reads (format 0.0.4). Pure, and without the library: who keeps numbers in a process
uses `outlast.observe.prometheus`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from outlast.observe.metrics import Metric, Sample


def exposition(metrics: Sequence[Metric], samples: Iterable[Sample]) -> str:
    """
    Each metric with its samples, in this order; those with the same labels, such as ``other``, are added up. One without
    samples is left out. All are gauges: what is on record goes down when it is deleted.
    """
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {metric.name: {} for metric in metrics}
    for sample in samples:
        values = found[sample.metric.name]
        labels = tuple(sample.labels.items())
        values[labels] = values.get(labels, 0) + sample.value
    lines: list[str] = []
    for metric in metrics:
        if found[metric.name]:
            lines += [f"# HELP {metric.name} {_escaped(metric.about)}", f"# TYPE {metric.name} gauge"]
            lines += [f"{metric.name}{_labels(labels)} {value!r}" for labels, value in found[metric.name].items()]
    return "".join(f"{line}\n" for line in lines)


def _labels(labels: tuple[tuple[str, str], ...]) -> str:
    said = ",".join(f'{name}="{_quoted(value)}"' for name, value in labels)
    return f"{{{said}}}" if said else ""


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', r"\"")
