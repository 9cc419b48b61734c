"""``metaq lag``: shows the lag of consumer groups and Spark queries, once or repeatedly."""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from metaq.cli.arguments import now_ms, topic_name
from metaq.cli.colours import is_terminal
from metaq.cli.command import argument, command
from metaq.cli.output import note, print_rows, time_text
from metaq.cli.streams import complain

if TYPE_CHECKING:
    from metaq.cli.checkpoint import QuerySource
    from metaq.cli.profile import CommandProfile
    from metaq.client.cluster import PartitionInfo
    from metaq.client.metaq import MetaQ
    from metaq.client.rocketmq.client import RocketMQ
    from metaq.client.rocketmq.cluster import QueueInfo
    from metaq.model import Partition

    Row = dict[str, object]
    Table = tuple[list[Row], tuple[str, ...]]

WATCH_S: Final = 5.0
_WATCH_MAX_S: Final = 86_400.0
_CLEAR: Final = "\x1b[H\x1b[2J"


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= _WATCH_MAX_S:
        raise argparse.ArgumentTypeError(f"{text!r}: expected seconds, 0.1 to {_WATCH_MAX_S:g}")
    return seconds


@command(
    "lag",
    "show how far a consumer group or a Spark query is behind",
    argument("group", nargs="?", help="consumer group; not with --checkpoint"),
    argument(
        "topics",
        type=topic_name,
        nargs="*",
        default=[],
        metavar="TOPIC",
        help="default: those that the group has offsets of",
    ),
    argument("--checkpoint", metavar="DIR", help="a Spark query instead: its checkpointLocation, a local path"),
    argument(
        "--watch",
        nargs="?",
        type=_seconds,
        const=WATCH_S,
        metavar="SECONDS",
        help=f"again and again, this often (default: {WATCH_S:g}), until Ctrl-C",
    ),
    argument("--json", action="store_true", help="one JSON object a line; with --watch, each has the time"),
    examples=("g t", "--checkpoint {folder}/query"),
    abilities=(
        ("`lag`", "in ZooKeeper or at its brokers", "in ZooKeeper", "yes; at proxies the topics are named"),
        ("`lag --checkpoint`", "yes", "yes", "yes"),
    ),
    list_name="topics",
)
def _run(options: argparse.Namespace, profile: CommandProfile) -> int:
    if options.checkpoint is None and options.group is None:
        raise ValueError("lag: name a group, or --checkpoint DIR")
    with profile.connect() as mq:
        if options.checkpoint is None:
            found = _show(options, lambda: _lag_of_group(mq, options.group, options.topics))
        else:
            topics = [topic for topic in (options.group, *options.topics) if topic is not None]
            found = _show(options, lambda: _lag_of_query(mq, profile.cluster, options.checkpoint, topics))
    if not found and options.checkpoint is not None:
        complain(f"--checkpoint {options.checkpoint}: no broker has its topics, and no batch is committed")
    elif not found:
        of_topics = f" of {', '.join(options.topics)}, and no broker has partitions" if options.topics else ""
        complain(f"group {options.group!r} has no offsets{of_topics}")
    return 0 if found else 1


def _show(options: argparse.Namespace, measure: Callable[[], Table]) -> bool:
    """Print a table, and return whether it has rows; with ``--watch`` one after the other, without an end.

    A failure after the first one is noted.
    """
    from metaq.errors import MetaqError

    rows, columns = measure()
    if options.watch is None:
        print_rows(rows, columns, as_json=options.json)
        return bool(rows)
    pause = threading.Event()
    while True:
        _print_round(options, rows, columns)
        while True:
            pause.wait(options.watch)
            try:
                rows, columns = measure()
                break
            except (MetaqError, OSError) as error:
                note(f"{time_text(now_ms())}: {error}")


def _print_round(options: argparse.Namespace, rows: Sequence[Row], columns: Sequence[str]) -> None:
    time = time_text(now_ms())
    if options.json:
        for row in rows:
            print(json.dumps({"time": time, **row}))
    else:
        print(f"{_CLEAR if is_terminal(sys.stdout) else ''}{time}")
        print_rows(rows, columns, as_json=False)
        print()
    sys.stdout.flush()


def _lag_of_group(mq: MetaQ | RocketMQ, group: str, topics: list[str]) -> Table:
    from metaq.client.metaq import MetaQ
    from metaq.model import Partition

    if isinstance(mq, MetaQ):
        rows = [asdict(one) for one in mq.cluster.lag(group, topics or None)]
        behind = "bytes_behind"
    else:
        rows = [asdict(one) for one in mq.cluster.lag(group, topics or None)]
        behind = "messages_behind"
    for row in rows:
        row["partition"] = str(Partition(*row["partition"]))
    return rows, ("topic", "partition", "position", "end", behind)


def _lag_of_query(mq: MetaQ | RocketMQ, cluster: str, place: str, topics: list[str]) -> Table:
    from metaq.cli.checkpoint import read_query
    from metaq.client.metaq import MetaQ

    system, other = ("metaq", "rocketmq") if isinstance(mq, MetaQ) else ("rocketmq", "metaq")
    sources = [source for source in read_query(place) if source.system == system]
    if not sources:
        raise ValueError(f"--checkpoint {place}: the query reads {other}, and {cluster!r} is {system}; see --cluster")
    read = {topic for source in sources for topic in source.topics}
    if unknown := sorted(set(topics) - read):
        raise ValueError(
            f"--checkpoint {place}: the query does not read {unknown[0]!r}; it reads {', '.join(sorted(read))}"
        )
    behind = "bytes_behind" if system == "metaq" else "messages_behind"
    rows = [
        row
        for source in sources
        for topic in source.topics
        if not topics or topic in topics
        for row in _lag_of_source(mq, source, topic, behind)
    ]
    return rows, ("source", "topic", "partition", "position", "end", behind, "remark")


def _lag_of_source(mq: MetaQ | RocketMQ, source: QuerySource, topic: str, behind: str) -> list[Row]:
    from metaq.errors import TopicNotFound
    from metaq.model import TopicPartition

    try:
        there: dict[Partition, PartitionInfo | QueueInfo] = {one.partition: one for one in mq.cluster.describe(topic)}
    except TopicNotFound:
        there = {}
    read = {where.partition for where in source.progress.offsets if where.topic == topic}
    rows = []
    for partition in sorted(read | set(there)):
        where = TopicPartition(topic, partition)
        found = there.get(partition)
        position = source.progress.offsets.get(where)
        unread, remark = _unread(position, source.progress.incarnations.get(where), found)
        row: Row = {"source": source.label, "topic": topic, "partition": str(partition), "position": position}
        rows.append(row | {"end": None if found is None else found.end, behind: unread, "remark": remark})
    return rows


def _unread(
    position: int | None, incarnation: str | None, found: PartitionInfo | QueueInfo | None
) -> tuple[int | None, str | None]:
    """How much of a partition is unread, and why it is not simply read on from ``position``."""
    if found is None:
        return None, "gone"
    whole, now = found.end - found.start, getattr(found, "incarnation", None)
    if position is None:
        return whole, "new"
    if None not in (incarnation, now) and incarnation != now:
        return whole, "recreated"
    if position < found.start:
        return whole, "removed"
    if position > found.end:
        return 0, "ahead"
    return found.end - position, None
