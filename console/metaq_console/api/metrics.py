"""``GET /metrics``: what the sampler has recorded about consumer groups, for Prometheus.

Brokers count messages and bytes, but do not know how far a group is behind: the sampler asks for its offsets. Names
follow OpenTelemetry's conventions for messaging, with underscores: ``messaging.consumer.group.name`` and so on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from starlette.responses import Response

from metaq.net.clock import wall_clock_ms
from metaq_console.cluster.sampling import GroupSample
from metaq_console.console import Console

MEDIA_TYPE: Final = "text/plain; version=0.0.4"
LAG, MEMBERS, AGE = (
    "messaging_consumer_group_lag",
    "messaging_consumer_group_members",
    "metaq_console_sample_age_seconds",
)
METRICS: Final = {
    LAG: "What a group has not read of a topic; unit says what is counted, bytes or messages.",
    MEMBERS: "Running consumers of a group.",
    AGE: "Time since the groups were asked for last; no value before the first time.",
}
"""Names of the gauges, with what they mean."""


def metrics_answer(console: Console) -> Response:
    """Return the figures of the last sample; nothing is asked."""
    system, samples = console.cluster.system, console.sampler.groups
    lines = [
        *_head(LAG),
        *(line for one in samples for line in _lags(system.name, one)),
        *_head(MEMBERS),
        *(_line(MEMBERS, _group(system.name, one), one.members) for one in samples if one.members is not None),
    ]
    at_ms = console.sampler.groups_at_ms
    if at_ms is not None:
        lines += [*_head(AGE), _line(AGE, {}, (wall_clock_ms() - at_ms) / 1000)]
    return Response("".join(f"{line}\n" for line in lines), media_type=MEDIA_TYPE)


def _head(name: str) -> tuple[str, str]:
    return f"# HELP {name} {METRICS[name]}", f"# TYPE {name} gauge"


def _lags(system: str, sample: GroupSample) -> Iterator[str]:
    for row in sample.lags:
        labels = _group(system, sample) | {"messaging_destination_name": row.topic, "unit": row.unit}
        yield _line(LAG, labels, row.lag)


def _group(system: str, sample: GroupSample) -> dict[str, str]:
    return {"messaging_system": system, "messaging_consumer_group_name": sample.group}


def _line(name: str, labels: Mapping[str, str], value: float) -> str:
    shown = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
    return f"{name}{{{shown}}} {value}" if shown else f"{name} {value}"


def _escaped(text: str) -> str:
    plain = text.encode("utf-8", "backslashreplace").decode()
    return plain.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
