"""``metaq consume``: prints the messages of a topic, and with ``--follow`` new ones."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Final

from metaq.cli.arguments import above_zero, parse_start, topic_name
from metaq.cli.message_form import Write, add_form, writer_of
from metaq.cli.streams import complain, require_reader

if TYPE_CHECKING:
    from metaq.cli.profile import Profile
    from metaq.client.browser import Browser, Start
    from metaq.client.group_consumer import GroupConsumer
    from metaq.client.metaq import MetaQ
    from metaq.client.records import Received
    from metaq.client.rocketmq.browser import RocketBrowser
    from metaq.client.rocketmq.client import RocketMQ
    from metaq.client.rocketmq.group_consumer import RocketGroupConsumer
    from metaq.client.rocketmq.records import RocketReceived
    from metaq.model import Partition

_START_HELP: Final = (
    "earliest (default), latest, a time in ISO 8601, @MS since 1970, a time span back from now such as 90s, 15m, 12h, "
    "7d, or an offset, with one --partition"
)
_GROUP_BATCH: Final = 500
_GROUP_WAIT_S: Final = 1.0
_GROUP_ROUNDS: Final = 15
_NOTHING_FREE: Final = "no partition is free, other consumers have all of them"


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``consume``."""
    parser = commands.add_parser("consume", help="print messages of a topic")
    parser.add_argument("topic", type=topic_name)
    parser.add_argument("-f", "--follow", action="store_true", help="go on with what is sent later")
    parser.add_argument("-n", "--count", type=above_zero, metavar="N", help="stop after N messages")
    parser.add_argument("--from", dest="start", default="earliest", metavar="START", help=_START_HELP)
    parser.add_argument("-p", "--partition", action="append", metavar="PARTITION", help="only this one; repeatable")
    parser.add_argument("-a", "--attribute", metavar="TEXT", help="only messages with this attribute (RocketMQ: tag)")
    parser.add_argument("-g", "--grep", metavar="TEXT", help="only messages whose value contains this text")
    parser.add_argument(
        "--require-brokers",
        type=_names,
        metavar="NAME,...",
        help="read nothing unless these brokers are found (MetaQ: broker ids)",
    )
    parser.add_argument("--group", metavar="GROUP", help="as a consumer of this group: go on where it was")
    add_form(parser)
    parser.set_defaults(run=_run)


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(f"{text!r}: expected names of brokers, separated by commas")
    return names


def _run(options: argparse.Namespace, profile: Profile) -> int:
    from metaq.model import Partition

    partitions = None if options.partition is None else [Partition.parse_any(name) for name in options.partition]
    start = parse_start(options.start, partitions)
    write = writer_of(options)
    if options.group is not None:
        return _run_in_group(options, profile, start, write)
    with profile.connect() as mq:
        browser = _browser(mq, options, partitions, start)
        messages = browser.follow(require_reader) if options.follow else browser
        if not _print(messages, options, write) and browser.warning is not None:
            complain(browser.warning)
            return 1
    return 0


def _print(messages: Iterable[Received | RocketReceived], options: argparse.Namespace, write: Write) -> bool:
    """Print messages up to the requested count; return whether the count was reached."""
    out, is_enough = sys.stdout.buffer, False
    # Closes the browser together with ``picked``, before the connections are closed.
    with closing(_picked(messages, options.attribute, options.grep)) as picked:
        for number, message in enumerate(picked, 1):
            out.write(write(message))
            if options.follow:
                out.flush()
            if is_enough := number == options.count:
                break
        out.flush()
    return is_enough


def _browser(
    mq: MetaQ | RocketMQ, options: argparse.Namespace, partitions: list[Partition] | None, start: Start
) -> Browser | RocketBrowser:
    """Return the messages of the topic; RocketMQ's brokers filter by tags."""
    from metaq.client.metaq import MetaQ

    required = options.require_brokers
    if isinstance(mq, MetaQ) or options.attribute is None:
        return mq.browse(options.topic, partitions=partitions, start=start, require_brokers=required)
    return mq.browse(
        options.topic, partitions=partitions, start=start, tags=options.attribute, require_brokers=required
    )


def _run_in_group(options: argparse.Namespace, profile: Profile, start: Start, write: Write) -> int:
    """Print the messages that the group has not read; a message counts as read when it was written to the output."""

    if options.partition is not None:
        raise ValueError("--partition: with --group, the group says which partitions are read")
    if options.require_brokers is not None:
        raise ValueError("--require-brokers: with --group, what a broker holds that is away is read when it is back")
    with profile.connect() as mq:
        mq.cluster.describe(options.topic)  # an unknown topic is an error; do not wait for it
        with mq.consumer(options.group, [options.topic], start=start, auto_ack=False) as consumer:
            return _print_unread(consumer, options, write)


def _print_unread(consumer: GroupConsumer | RocketGroupConsumer, options: argparse.Namespace, write: Write) -> int:
    """Print until no message is left, or the count is reached; return the exit status."""
    left, idle, out = options.count, 0, sys.stdout.buffer
    while left != 0:
        messages = consumer.fetch(_GROUP_BATCH if left is None else 1, timeout=_GROUP_WAIT_S)
        printed = list(_picked(messages, options.attribute, options.grep))
        with uninterrupted():  # printed messages count as read
            out.write(b"".join(map(write, printed)))
            out.flush()
            for message in messages:
                message.ack()
        if left is not None:
            left -= len(printed)
        if options.follow:
            require_reader()
        if messages or options.follow:
            continue
        if consumer.assignment and not any(consumer.lag().values()):
            return 0
        idle += not consumer.assignment
        if idle == _GROUP_ROUNDS:
            complain(consumer.paused or f"group {options.group!r}: {_NOTHING_FREE}")
            return 1
    return 0


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Defer Ctrl-C until the end of the block; a second one interrupts at once. In the main thread only."""
    pressed = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt


def _picked(
    messages: Iterable[Received | RocketReceived], attribute: str | None, text: str | None
) -> Generator[Received | RocketReceived, None, None]:
    wanted = None if text is None else os.fsencode(text)
    for message in messages:
        if (attribute is None or message.attribute == attribute) and (wanted is None or wanted in message.data):
            yield message
