"""``metaq consume``: prints the messages of a topic, and with ``--follow`` new ones."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Generator, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Final

from metaq.cli.arguments import above_zero, parse_start
from metaq.cli.colours import is_terminal
from metaq.cli.command import FOLLOW, PARTITIONS, TOPIC, argument, command
from metaq.cli.message_form import FORM, Write, writer_of
from metaq.cli.output import counted
from metaq.cli.parser import suggestion
from metaq.cli.status_line import StatusLine
from metaq.cli.streams import complain, require_reader

if TYPE_CHECKING:
    from metaq.cli.profile import CommandProfile
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
_START_DOC: Final = (
    "`earliest` (default), `latest`, a time (`2026-01-31T12:00:00Z`, `@1700000000000`, or a span back from now: `90s`, "
    "`15m`, `12h`, `7d`), or an offset with one `--partition`"
)
_GROUP_BATCH: Final = 500
_GROUP_WAIT_S: Final = 1.0
_GROUP_ROUNDS: Final = 15
_NOTHING_FREE: Final = "no partition is free, other consumers have all of them"


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(f"{text!r}: expected names of brokers, separated by commas")
    return names


@command(
    "consume",
    "print messages of a topic",
    TOPIC,
    FOLLOW,
    argument("-n", "--count", type=above_zero, metavar="N", help="stop after N messages"),
    argument("--from", dest="start", default="earliest", metavar="START", help=_START_HELP, doc=_START_DOC),
    PARTITIONS,
    argument(
        "-a",
        "--attribute",
        metavar="TEXT",
        help="only messages with this attribute (RocketMQ: tag)",
    ),
    argument("-g", "--grep", metavar="TEXT", help="only messages whose value contains this text"),
    argument(
        "--require-brokers",
        type=_names,
        metavar="NAME,...",
        help="read nothing unless these brokers are found (MetaQ: broker ids)",
        doc="print nothing and end with status 1 unless these brokers are found (MetaQ: broker ids). Without it, a "
        "broker that is away and in no list is not missed",
    ),
    argument("--group", metavar="GROUP", help="as a consumer of this group: go on where it was"),
    *FORM,
    examples=("t", "t --group g", "t --from 1h", "t -f -n 1"),
    abilities=(
        ("`consume`", "yes", "yes", "yes"),
        ("`consume --from TIME`", "yes", "no: it keeps no times", "yes"),
        ("`consume --group`", "in ZooKeeper or at its brokers", "in ZooKeeper", "yes"),
    ),
)
def _run(options: argparse.Namespace, profile: CommandProfile) -> int:
    from metaq.model import Partition

    partitions = None if options.partition is None else [Partition.parse_any(name) for name in options.partition]
    start = parse_start(options.start, partitions)
    write = writer_of(options)
    if options.group is not None:
        return _run_in_group(options, profile, start, write)
    with profile.connect() as mq:
        browser, printed = _browser(mq, options, partitions, start), _Printed(StatusLine())
        if options.follow:
            _say_if_unknown(mq, options.topic)
        try:
            is_enough = _print(browser, printed, options, write)
        finally:
            printed.line.clear()
        if not is_enough and browser.warning is not None:
            complain(browser.warning)
            return 1
        if not printed.messages and not options.follow:
            _say_if_unknown(mq, options.topic)
    return 0


@dataclass(slots=True)
class _Printed:
    """How many messages were printed, and the line that says so."""

    line: StatusLine
    messages: int = 0

    def wait(self) -> None:
        """Show that the command waits for messages."""
        require_reader()
        so_far = f"{counted(self.messages)}; " if self.messages else ""
        self.line.show(f"{so_far}waiting for more, Ctrl-C ends")


def _say_if_unknown(mq: MetaQ | RocketMQ, topic: str) -> None:
    """Say that a topic has never had a message, where the broker takes any topic."""
    from metaq.errors import MetaqError

    try:
        there = mq.cluster.topics()
    except MetaqError:  # a proxy does not list topics
        return
    if topic not in there:
        near = suggestion(topic, there) or f"; topics there: {', '.join(sorted(there)[:20]) or 'none'}"
        complain(f"nobody has sent a message to topic {topic!r} yet{near}")


def _print(browser: Browser | RocketBrowser, printed: _Printed, options: argparse.Namespace, write: Write) -> bool:
    """Print messages up to the requested count; return whether the count was reached."""
    out, line, is_enough = sys.stdout.buffer, printed.line, False
    messages = browser.follow(printed.wait) if options.follow else browser
    # Closes the browser together with ``picked``, before the connections are closed.
    with _progress(options, printed), closing(_picked(messages, options.attribute, options.grep)) as picked:
        for message in picked:
            if options.follow:
                line.clear()
            out.write(write(message))
            if options.follow:
                out.flush()
            printed.messages += 1
            if is_enough := printed.messages == options.count:
                break
        out.flush()
    return is_enough


def _progress(options: argparse.Namespace, printed: _Printed) -> AbstractContextManager[None]:
    """Show how many messages were printed, unless the messages themselves show it or the command waits for more."""
    if options.follow or is_terminal(sys.stdout):
        return nullcontext()
    return printed.line.progress(lambda: printed.messages, f"of {options.topic}")


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


def _run_in_group(options: argparse.Namespace, profile: CommandProfile, start: Start, write: Write) -> int:
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
    shown = _Printed(StatusLine())
    try:
        with _progress(options, shown):
            return _print_shown(consumer, options, write, shown)
    finally:
        shown.line.clear()


def _print_shown(
    consumer: GroupConsumer | RocketGroupConsumer, options: argparse.Namespace, write: Write, shown: _Printed
) -> int:
    from metaq.errors import PartitionLost

    left, idle, out = options.count, 0, sys.stdout.buffer
    while left != 0:
        messages = consumer.fetch(_GROUP_BATCH if left is None else 1, timeout=_GROUP_WAIT_S)
        printed = list(_picked(messages, options.attribute, options.grep))
        with uninterrupted():  # printed messages count as read
            if printed:
                shown.line.clear()
            out.write(b"".join(map(write, printed)))
            out.flush()
            for message in messages:
                with suppress(PartitionLost):  # while the output waited; the next owner delivers it again
                    message.ack()
        if left is not None:
            left -= len(printed)
        shown.messages += len(printed)
        if options.follow and not messages:
            shown.wait()
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
    """Defer Ctrl-C until the end of the block; a second one interrupts at once. In the main thread only.

    Where the signal is ignored, as by a shell's background job, it stays so.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield
        return
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
