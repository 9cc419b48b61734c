"""``metaq stats``: statistics of brokers, or of a topic."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from metaq.cli.arguments import topic_name
from metaq.cli.command import argument, command
from metaq.cli.output import print_rows, span_text, time_text

if TYPE_CHECKING:
    from metaq.cli.profile import CommandProfile
    from metaq.client.cluster import ClusterView
    from metaq.client.rocketmq.cluster import RocketClusterView
    from metaq.client.rocketmq.statistics import RocketBrokerStatistics
    from metaq.client.statistics import BrokerStatistics, Realtime

Rows = Sequence[dict[str, object]]

_METAQ: Final = (
    *("broker", "address", "version", "role", "uptime", "clients", "topics", "messages"),
    *("puts", "gets", "failed", "puts_per_s", "gets_per_s"),
)
_METAQ_TOPIC: Final = ("broker", "address", "partitions", "messages", "bytes", "puts_per_s", "gets_per_s")
_ROCKETMQ: Final = (
    *("broker", "id", "address", "version", "uptime", "messages_in", "messages_in_today", "messages_out_today"),
    *("in_per_s", "out_per_s", "disk_used", "oldest"),
)
_ROCKETMQ_TOPIC: Final = ("partition", "start", "end", "messages", "last_message")


@command(
    "stats",
    "show what brokers say of themselves, or of a topic",
    argument("topic", type=topic_name, nargs="?", metavar="TOPIC", help="default: the brokers"),
    argument("--all", action="store_true", help="every figure of the brokers, one a line"),
    argument("--json", action="store_true", help="one JSON object a line, with every figure"),
    examples=("", "t", "--all"),
    abilities=(("`stats`", "yes", "yes, fewer", "yes"),),
)
def _run(options: argparse.Namespace, profile: CommandProfile) -> int:
    from metaq.client.metaq import MetaQ

    if options.all and options.topic is not None:
        raise ValueError("--all: it is for the figures of brokers, without a topic")
    with profile.connect() as mq:
        if isinstance(mq, MetaQ):
            rows, columns = _metaq(mq.cluster, options.topic)
        else:
            rows, columns = _rocketmq(mq.cluster, options.topic)
    if options.all and not options.json:
        rows, columns = _each_figure(rows), ("broker", "id", "figure", "value")
        if not any("id" in row for row in rows):
            columns = ("broker", "figure", "value")
    print_rows(rows, columns, as_json=options.json)
    return 0


def _metaq(cluster: ClusterView, topic: str | None) -> tuple[Rows, tuple[str, ...]]:
    if topic is None:
        return [_metaq_broker(one) for one in cluster.statistics()], _METAQ
    rows: list[dict[str, object]] = []
    for one in cluster.topic_statistics(topic):
        figures = asdict(one)
        realtime = figures.pop("realtime")
        recent, last_minute = one.last_minute, figures.pop("last_minute")
        rates = _rates(one.realtime)
        if recent is not None:
            rates |= {"puts_per_s": round(recent.puts_per_s, 2)}
        rows.append({**figures, "address": str(one.address), **rates, "realtime": realtime, "last_minute": last_minute})
    return rows, _METAQ_TOPIC


def _metaq_broker(one: BrokerStatistics) -> dict[str, object]:
    uptime_s = one.number("uptime")
    return {
        "broker": one.broker,
        "address": str(one.address),
        "version": one.figures.get("version", "").partition(";")[0] or None,
        "role": "slave" if one.figures.get("slave") == "true" else "master",
        "uptime": span_text(uptime_s),
        "uptime_s": uptime_s,
        "clients": one.number("curr_connections"),
        "topics": one.number("topics"),
        "messages": one.number("total_messages"),
        "puts": one.number("cmd_put"),
        "gets": one.number("cmd_get"),
        "failed": one.number("put_failed"),
        "puts_per_s": _rounded(one.per_s("put")),
        "gets_per_s": _rounded(one.per_s("get")),
        "figures": dict(one.figures),
        "realtime": {name: asdict(counted) for name, counted in one.realtime.items()},
    }


def _rates(realtime: Mapping[str, Realtime]) -> dict[str, object]:
    put, get = realtime.get("put"), realtime.get("get")
    return {"puts_per_s": put and round(put.per_s, 2), "gets_per_s": get and round(get.per_s, 2)}


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 2)


def _rocketmq(cluster: RocketClusterView, topic: str | None) -> tuple[Rows, tuple[str, ...]]:
    if topic is None:
        return [_rocketmq_broker(one) for one in cluster.statistics()], _ROCKETMQ
    rows: list[dict[str, object]] = [
        {
            "topic": one.topic,
            "partition": str(one.partition),
            "start": one.start,
            "end": one.end,
            "messages": one.end - one.start,
            "last_message": time_text(one.last_ms),
        }
        for one in cluster.topic_statistics(topic)
    ]
    return rows, _ROCKETMQ_TOPIC


def _rocketmq_broker(one: RocketBrokerStatistics) -> dict[str, object]:
    oldest_ms, ratio = one.number("earliestMessageTimeStamp"), one.disk_ratio
    return {
        "broker": one.broker,
        "id": one.broker_id,
        "address": str(one.address),
        "version": one.version,
        "uptime": span_text(one.uptime_s),
        "uptime_s": one.uptime_s,
        "messages_in": one.number("putMessageTimesTotal"),
        "messages_in_today": _today(one, "msgPutTotal"),
        "messages_out_today": _today(one, "msgGetTotal"),
        "in_per_s": one.rate("putTps"),
        "out_per_s": one.rate("getTransferredTps", "getTransferedTps"),
        "disk_used": None if ratio is None else f"{ratio:.0%}",
        "oldest": time_text(oldest_ms) if oldest_ms is not None and oldest_ms > 0 else None,
        "figures": dict(one.figures),
    }


def _today(one: RocketBrokerStatistics, name: str) -> int | None:
    morning, now = one.number(f"{name}TodayMorning"), one.number(f"{name}TodayNow")
    return None if morning is None or now is None else now - morning


def _each_figure(rows: Rows) -> Rows:
    """Return one row for each figure; figures of the last half hour are last."""
    found: list[dict[str, object]] = []
    for row in rows:
        of_broker: dict[str, object] = {name: row[name] for name in ("broker", "id") if name in row}
        figures, realtime = row["figures"], row.get("realtime", {})
        assert isinstance(figures, dict)
        assert isinstance(realtime, dict)
        counted = {f"{kind} {name}": value for kind, one in realtime.items() for name, value in one.items()}
        found += [{**of_broker, "figure": name, "value": str(value)} for name, value in (figures | counted).items()]
    return found
