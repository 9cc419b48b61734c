"""Commands that look at a cluster: ``brokers``, ``topics``, ``describe``, ``offsets``, ``groups``."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from metaq.cli.arguments import parse_time
from metaq.cli.command import JSON, TOPIC, argument, command
from metaq.cli.output import note, print_rows
from metaq.cli.streams import complain

if TYPE_CHECKING:
    from metaq.cli.profile import CommandProfile
    from metaq.client.metaq import MetaQ
    from metaq.client.rocketmq.client import RocketMQ
    from metaq.client.rocketmq.cluster import RocketClusterView
    from metaq.client.statistics import TopicSize


_METAQ_TOPICS: Final[tuple[str, ...]] = ("topic", "partitions", "messages", "bytes", "in_per_s", "out_kib_per_s")
_ROCKETMQ_TOPICS: Final[tuple[str, ...]] = ("topic", "partitions", "messages", "in_per_s")


@command("brokers", "list brokers", JSON, examples=("",))
def _brokers(options: argparse.Namespace, profile: CommandProfile) -> int:
    with profile.connect() as mq:
        rows = [{"broker": broker_id, "address": str(at)} for broker_id, at in mq.cluster.brokers().items()]
    print_rows(rows, ("broker", "address"), as_json=options.json)
    return 0


@command(
    "topics",
    "list topics, with what they hold and how much goes in and out",
    JSON,
    examples=("",),
    abilities=(
        ("`topics`", "yes, with rates of the last minute", "yes, without rates", "yes, with the rate of sends"),
    ),
)
def _topics(options: argparse.Namespace, profile: CommandProfile) -> int:
    from metaq.client.metaq import MetaQ

    with profile.connect() as mq:
        if isinstance(mq, MetaQ):
            rows, columns = [_metaq_topic(one) for one in mq.cluster.topic_sizes()], _METAQ_TOPICS
        else:
            rows, columns = _rocketmq_topics(mq.cluster), _ROCKETMQ_TOPICS
    print_rows(rows, columns, as_json=options.json)
    return 0


def _metaq_topic(one: TopicSize) -> dict[str, object]:
    recent = one.last_minute
    return {
        "topic": one.topic,
        "partitions": one.partitions,
        "messages": one.messages,
        "bytes": one.bytes,
        "in_per_s": recent and round(recent.puts_per_s, 2),
        "out_kib_per_s": recent and round(recent.bytes_out_per_s / 1024, 2),
    }


def _rocketmq_topics(cluster: RocketClusterView) -> list[dict[str, object]]:
    """Brokers count neither the bytes of a topic, nor what is read of it: they count that by group."""
    counts, rates = cluster.topic_messages(), cluster.topic_rates()
    return [
        {
            "topic": topic,
            "partitions": len(queues),
            "messages": counts.get(topic),
            "in_per_s": _rounded(rates.get(topic)),
        }
        for topic, queues in cluster.topics().items()
    ]


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 2)


@command(
    "describe",
    "show the partitions of a topic",
    TOPIC,
    JSON,
    examples=("t",),
    abilities=(("`describe`", "yes", "yes, without numbers of messages", "yes"),),
)
def _describe(options: argparse.Namespace, profile: CommandProfile) -> int:
    from metaq.client.cluster import PartitionInfo, unlisted_warning

    with profile.connect() as mq:
        found = mq.cluster.describe(options.topic)
    columns: tuple[str, ...] = ("partition", "address", "start", "end", "bytes", "messages")
    rows = []
    for one in found:
        row = {**asdict(one), "partition": str(one.partition), "address": str(one.address), "messages": one.messages}
        if isinstance(one, PartitionInfo):
            row["bytes"] = one.end - one.start
        rows.append(row)
    if not all("bytes" in row for row in rows):
        columns = tuple(column for column in columns if column != "bytes")
    print_rows(rows, columns, as_json=options.json)
    if (warning := unlisted_warning(found)) is not None:
        complain(warning)
    return 0


@command(
    "offsets",
    "show the offset of the first message from a time on",
    TOPIC,
    argument("--at", required=True, metavar="TIME", help="ISO 8601, @MS since 1970, or a span such as 15m"),
    JSON,
    examples=("t --at @0",),
    abilities=(("`offsets`", "yes", "no: it keeps no times", "yes"),),
)
def _offsets(options: argparse.Namespace, profile: CommandProfile) -> int:
    time_ms = parse_time(options.at, "--at")
    with profile.connect() as mq:
        found = mq.cluster.offsets_at(options.topic, time_ms)
    rows = [{"partition": str(partition), "offset": offset} for partition, offset in found.items()]
    print_rows(rows, ("partition", "offset"), as_json=options.json)
    return 0


@command(
    "groups",
    "list consumer groups, or forget one",
    argument("--forget", metavar="GROUP", help="remove a group without running consumers from bundled brokers"),
    argument("--execute", action="store_true", help="do it; without this, only show which offsets would be lost"),
    JSON,
    examples=("",),
    abilities=(
        ("`groups`", "in ZooKeeper or at its brokers", "in ZooKeeper", "yes, not at proxies"),
        ("`groups --forget`", "at its brokers", "no", "no: see `deleteSubGroup` of `mqadmin`"),
    ),
)
def _groups(options: argparse.Namespace, profile: CommandProfile) -> int:
    with profile.connect() as mq:
        if options.forget is not None:
            _forget(mq, options)
            return 0
        if options.execute:
            raise ValueError("groups: --execute is for --forget")
        rows = [{"group": name} for name in mq.cluster.groups()]
    print_rows(rows, ("group",), as_json=options.json)
    return 0


def _forget(mq: MetaQ | RocketMQ, options: argparse.Namespace) -> None:
    from metaq.client.groups.forgetting import check_forgettable, forget_group
    from metaq.client.metaq import MetaQ

    if not isinstance(mq, MetaQ):
        raise ValueError("groups --forget: only groups that bundled brokers keep for MetaQ's clients")
    check_forgettable(mq.consumers, options.forget)
    rows = [
        {"topic": one.topic, "partition": str(one.partition), "position": one.position}
        for one in mq.cluster.lag(options.forget)
        if one.position is not None
    ]
    if options.execute:
        forget_group(mq.consumers, options.forget)
    print_rows(rows, ("topic", "partition", "position"), as_json=options.json)
    note("the group is forgotten" if options.execute else "nothing is forgotten; --execute does it")
