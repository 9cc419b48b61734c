"""``metaq find``: single messages by id, by key, by time."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Generator, Iterator
from contextlib import closing, nullcontext
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from metaq.cli.arguments import above_zero, parse_time
from metaq.cli.command import PARTITIONS, TOPIC, argument, command, one_of
from metaq.cli.message_form import FORM, writer_of
from metaq.cli.output import note
from metaq.cli.status_line import StatusLine

if TYPE_CHECKING:
    from metaq.cli.profile import CommandProfile
    from metaq.client.metaq import MetaQ
    from metaq.client.records import Received
    from metaq.client.rocketmq.client import RocketMQ
    from metaq.client.rocketmq.records import RocketReceived
    from metaq.client.search import Search
    from metaq.model import Partition

M = TypeVar("M")

_TIME_HELP = "a time in ISO 8601, @MS since 1970, or a span back from now such as 15m"


@command(
    "find",
    "print single messages: by id, by key, or the first from a time on",
    TOPIC,
    one_of(
        argument("--id", metavar="ID", help="the message with this id; of RocketMQ, the broker's or UNIQ_KEY"),
        argument("--key", metavar="KEY", help="messages with this key (MetaQ: with this attribute)"),
        argument("--at", metavar="TIME", help=f"the first of each partition from a time on: {_TIME_HELP}"),
        required=True,
    ),
    argument("--since", metavar="TIME", help="with --key: not those before"),
    argument("--until", metavar="TIME", help="with --key: not those after"),
    PARTITIONS,
    argument(
        "--scan",
        type=above_zero,
        metavar="N",
        default=1_000_000,
        help="MetaQ has no index of ids and keys: read at most so many messages (default: 1000000)",
    ),
    *FORM,
    examples=("t --id 1", "t --key k", "t --at @0"),
    abilities=(
        ("`find --at`", "yes", "no: it keeps no times", "yes"),
        ("`find --id`", "scan from the id's time on", "scan from the first message on", "index"),
        ("`find --key`", "scan", "scan", "index"),
    ),
)
def _run(options: argparse.Namespace, profile: CommandProfile) -> int:
    from metaq.client.metaq import MetaQ
    from metaq.errors import MessageNotFound
    from metaq.model import Partition

    partitions = None if options.partition is None else [Partition.parse_any(name) for name in options.partition]
    if options.key is None and (options.since or options.until):
        raise ValueError("--since and --until: they go with --key")
    write, out, line = writer_of(options), sys.stdout.buffer, StatusLine()
    count, read = 0, None
    with profile.connect() as mq:
        search: Search | None = None
        if options.at is not None:
            messages = _first_at(mq, options.topic, parse_time(options.at, "--at"), partitions)
        elif isinstance(mq, MetaQ):
            search = _search(mq, options, partitions)
            messages = iter(search)
        else:
            messages = _looked_up(mq, options, partitions)
        progress = nullcontext() if search is None else line.progress(partial(_scanned, search), "read")
        with progress, closing(_each(messages)) as each:
            for message in each:
                count += 1
                with line.hidden():
                    out.write(write(message))
                    out.flush()
                if search is not None and options.id is not None:
                    break
        if search is not None:
            read = search.scanned
            if not search.is_complete and not (count and options.id is not None):
                note(f"{read:,} messages were read, and there are more; --scan N reads further, --since TIME skips")
    if not count:
        raise MessageNotFound(options.topic, _wanted(options), read)
    return 0


def _scanned(search: Search) -> int:
    return search.scanned


def _each(messages: Iterator[M]) -> Generator[M, None, None]:
    """Yield all messages, and close their source before the connections."""
    yield from messages


def _wanted(options: argparse.Namespace) -> str:
    if options.at is not None:
        return f"from {options.at} on"
    return f"with id {options.id}" if options.id is not None else f"with key {options.key!r}"


def _search(mq: MetaQ, options: argparse.Namespace, partitions: list[Partition] | None) -> Search:
    if options.id is not None:
        return mq.search_id(options.topic, _message_id(options.id), partitions=partitions, limit=options.scan)
    return mq.search_key(
        options.topic,
        options.key,
        partitions=partitions,
        since_ms=None if options.since is None else parse_time(options.since, "--since"),
        until_ms=None if options.until is None else parse_time(options.until, "--until"),
        limit=options.scan,
    )


def _message_id(text: str) -> int:
    from metaq.model import INT64_MAX, INT64_MIN

    if not text.removeprefix("-").isdecimal() or not INT64_MIN <= int(text) <= INT64_MAX:
        raise ValueError(f"--id {text}: an id of MetaQ is a number of 64 bits")
    return int(text)


def _looked_up(
    mq: RocketMQ, options: argparse.Namespace, partitions: list[Partition] | None
) -> Iterator[RocketReceived]:
    if options.id is not None:
        found = mq.lookup.by_id(options.topic, options.id)
    else:
        found = mq.lookup.by_key(
            options.topic,
            options.key,
            None if options.since is None else parse_time(options.since, "--since"),
            None if options.until is None else parse_time(options.until, "--until"),
        )
    return (message for message in found if partitions is None or message.partition in partitions)


def _first_at(
    mq: MetaQ | RocketMQ, topic: str, time_ms: int, partitions: list[Partition] | None
) -> Iterator[Received | RocketReceived]:
    there = mq.cluster.offsets_at(topic, time_ms)
    if partitions is not None and (unknown := sorted(map(str, set(partitions) - set(there)))):
        raise ValueError(f"topic {topic!r} has no partition {unknown[0]}; it has {', '.join(map(str, there))}")
    for partition, offset in there.items():
        if partitions is None or partition in partitions:
            browser = mq.browse(topic, partitions=[partition], start={partition: offset})
            yield from _first(iter(browser))


def _first(messages: Iterator[Received | RocketReceived]) -> Iterator[Received | RocketReceived]:
    """Yield one message, and close the source of the others."""
    try:
        for message in messages:
            yield message
            return
    finally:
        close = getattr(messages, "close", None)
        if close is not None:
            close()
