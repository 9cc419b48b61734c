"""``metaq produce``: lines, files or one text become messages."""

from __future__ import annotations

import argparse
import os
import select
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypedDict

from metaq.cli.arguments import span_s
from metaq.cli.line_format import Line, line_parser
from metaq.cli.output import counted, note

if TYPE_CHECKING:
    from metaq.cli.profile import Profile
    from metaq.client.metaq import MetaQ
    from metaq.client.records import Sent
    from metaq.client.rocketmq.client import RocketMQ
    from metaq.client.rocketmq.records import RocketSent
    from metaq.model import Partition

    Send = Callable[[Sequence[Line]], Sequence[Sent | RocketSent]]


class RocketFields(TypedDict):
    """What all messages to RocketMQ have."""

    properties: dict[str, str]
    delay: int | None


CHUNK_BYTES: Final = 1 << 20
"""Most bytes of input that are sent, and waited for, at a time."""

_READ_BYTES: Final = 64 << 10
_FORMAT_HELP: Final = (
    "what stands in a line: %%k key, %%a attribute or tag, %%v value, with text between, such as %%k:%%v; "
    r"\t, \0, \\, %%%%"
)
_PROPERTY_HELP: Final = "RocketMQ: property of every message; repeatable"


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``produce``."""
    parser = commands.add_parser("produce", help="send lines of files or of the standard input")
    parser.add_argument("topic")
    parser.add_argument("files", nargs="*", metavar="FILE", help="default: the standard input; - stands for it too")
    parser.add_argument("-m", "--message", metavar="TEXT", action="append", help="send this text instead; repeatable")
    parser.add_argument("-a", "--attribute", metavar="TEXT", help="attribute (RocketMQ: tag) of every message")
    parser.add_argument("-p", "--partition", metavar="PARTITION", help="such as 0-1, or broker-a:1")
    parser.add_argument("-H", "--property", metavar="NAME=VALUE", action="append", help=_PROPERTY_HELP)
    parser.add_argument("--delay", metavar="SPAN", type=span_s, help="RocketMQ: deliver after 90s, 15m, 12h, 7d")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("-k", "--key-separator", metavar="TEXT", help="lines are KEY TEXT VALUE")
    form.add_argument("--format", metavar="FORMAT", help=_FORMAT_HELP)
    parser.add_argument("--whole", action="store_true", help="each file is one message, instead of each line")
    parser.add_argument("-v", "--verbose", action="store_true", help="print where each message was stored")
    parser.set_defaults(run=_run, list_name="files")


def _run(options: argparse.Namespace, profile: Profile) -> int:
    from metaq.model import Partition

    partition = None if options.partition is None else Partition.parse_any(options.partition)
    parse = _parser_of(options)
    count = 0
    with profile.connect() as mq:
        send = _sender(mq, options, partition)
        try:
            for lines in _chunks(options):
                sent = send([parse(line, number) for number, line in enumerate(lines, count + 1)])
                count += len(sent)
                if options.verbose:
                    _print_sent(sent)
        finally:
            note(f"{counted(count)} sent to {options.topic}")
    return 0


def _parser_of(options: argparse.Namespace) -> Callable[[bytes, int], Line]:
    """Return what reads a line, given its number."""
    attribute: str | None = options.attribute
    if options.format is not None:
        return line_parser(options.format, attribute)
    if options.key_separator is None:
        return lambda line, number: Line(line, None, attribute)
    separator = os.fsencode(options.key_separator)
    if not separator:
        raise ValueError("--key-separator: expected a text that is not empty")

    def parse(line: bytes, number: int) -> Line:
        key, found, value = line.partition(separator)
        if not found:
            raise ValueError(f"line {number}: it does not contain the key separator {options.key_separator!r}")
        return Line(value, key, attribute)

    return parse


def _sender(mq: MetaQ | RocketMQ, options: argparse.Namespace, partition: Partition | None) -> Send:
    """Return what sends lines to the cluster."""
    from metaq.client.metaq import MetaQ
    from metaq.model import Message

    topic: str = options.topic
    properties = _properties(options.property or ())
    if isinstance(mq, MetaQ):
        if properties or options.delay is not None:
            raise ValueError("--property and --delay are for RocketMQ: MetaQ's messages have neither")
        to_metaq = mq.producer()
        return lambda lines: to_metaq.send_many(
            topic,
            [Message(line.value, line.attribute) for line in lines],
            partition=partition,
            keys=[line.key for line in lines],
        )
    from metaq.client.rocketmq.records import RocketMessage

    to_rocketmq = mq.producer()
    more: RocketFields = {"properties": properties, "delay": options.delay}
    return lambda lines: to_rocketmq.send_many(
        topic,
        [RocketMessage(data=line.value, tag=line.attribute, keys=line.words_of_key(), **more) for line in lines],
        partition=partition,
        keys=[line.key for line in lines],
    )


def _properties(given: Sequence[str]) -> dict[str, str]:
    properties = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise ValueError(f"--property {text}: expected NAME=VALUE")
        properties[name] = value
    return properties


def _print_sent(sent: Sequence[Sent | RocketSent]) -> None:
    for one in sent:
        print(f"{one.topic}/{one.partition} offset {one.offset} id {one.message_id}")


def _chunks(options: argparse.Namespace) -> Iterator[list[bytes]]:
    """Yield messages as they come, at most about ``CHUNK_BYTES`` at a time."""
    if options.message is not None:
        yield [os.fsencode(text) for text in options.message]
        return
    for name in options.files or ["-"]:
        descriptor = sys.stdin.fileno() if name == "-" else os.open(name, os.O_RDONLY)
        try:
            yield from [[_whole(descriptor)]] if options.whole else _lines(descriptor)
        finally:
            if name != "-":
                os.close(descriptor)


def _whole(descriptor: int) -> bytes:
    return b"".join(iter(lambda: os.read(descriptor, _READ_BYTES), b""))


def _lines(descriptor: int) -> Iterator[list[bytes]]:
    """Yield the whole lines that have arrived, without line ends; a last line without one counts too."""
    begun = b""
    while data := _available(descriptor):
        *lines, begun = (begun + data).split(b"\n")
        if lines:
            yield lines
    if begun:
        yield [begun]


def _available(descriptor: int) -> bytes:
    """Wait for input, and return what has arrived, up to ``CHUNK_BYTES``; empty at the end."""
    parts = [os.read(descriptor, _READ_BYTES)]
    size = len(parts[0])
    while parts[-1] and size < CHUNK_BYTES and select.select([descriptor], [], [], 0)[0]:
        parts.append(os.read(descriptor, _READ_BYTES))
        size += len(parts[-1])
    return b"".join(parts)
