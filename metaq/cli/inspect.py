"""Commands that look at a cluster: ``brokers``, ``topics``, ``describe``, ``offsets``, ``groups``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

from metaq.cli.arguments import parse_time, topic_name
from metaq.cli.output import print_rows
from metaq.cli.streams import complain

if TYPE_CHECKING:
    from metaq.cli.profile import Profile

Run = Callable[[argparse.Namespace, "Profile"], int]


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands of this module."""
    _add(commands, "brokers", "list brokers", _brokers)
    _add(commands, "topics", "list topics", _topics)
    describe = _add(commands, "describe", "show the partitions of a topic", _describe)
    describe.add_argument("topic", type=topic_name)
    offsets = _add(commands, "offsets", "show the offset of the first message from a time on", _offsets)
    offsets.add_argument("topic", type=topic_name)
    offsets.add_argument("--at", required=True, metavar="TIME", help="ISO 8601, @MS since 1970, or a span such as 15m")
    _add(commands, "groups", "list consumer groups (zk://... or rocketmq://...)", _groups)


def _add(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, help_text: str, run: Run
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=help_text)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.set_defaults(run=run)
    return parser


def _brokers(options: argparse.Namespace, profile: Profile) -> int:
    with profile.connect() as mq:
        rows = [{"broker": broker_id, "address": str(at)} for broker_id, at in mq.cluster.brokers().items()]
    print_rows(rows, ("broker", "address"), as_json=options.json)
    return 0


def _topics(options: argparse.Namespace, profile: Profile) -> int:
    with profile.connect() as mq:
        rows = [{"topic": topic, "partitions": len(found)} for topic, found in mq.cluster.topics().items()]
    print_rows(rows, ("topic", "partitions"), as_json=options.json)
    return 0


def _describe(options: argparse.Namespace, profile: Profile) -> int:
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


def _offsets(options: argparse.Namespace, profile: Profile) -> int:
    time_ms = parse_time(options.at, "--at")
    with profile.connect() as mq:
        found = mq.cluster.offsets_at(options.topic, time_ms)
    rows = [{"partition": str(partition), "offset": offset} for partition, offset in found.items()]
    print_rows(rows, ("partition", "offset"), as_json=options.json)
    return 0


def _groups(options: argparse.Namespace, profile: Profile) -> int:
    with profile.connect() as mq:
        rows = [{"group": name} for name in mq.cluster.groups()]
    print_rows(rows, ("group",), as_json=options.json)
    return 0
