"""``metaq produce``: lines, files or one text become messages."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from metaq.cli.arguments import span_s
from metaq.cli.command import TOPIC, argument, command, one_of
from metaq.cli.input_lines import chunks
from metaq.cli.json_lines import json_parser
from metaq.cli.line_format import Line, line_parser
from metaq.cli.output import counted, note
from metaq.cli.status_line import StatusLine
from metaq.cli.targets import Target, target_of

if TYPE_CHECKING:
    from metaq.cli.profile import CommandProfile
    from metaq.client.records import Sent
    from metaq.client.rocketmq.records import RocketSent

    Show = Callable[[Sequence[Sent | RocketSent]], None]

Parse = Callable[[bytes, int], Line | None]

_FORMAT_HELP: Final = (
    "what stands in a line: %%k key, %%a attribute or tag, %%v value, with text between, such as %%k:%%v; "
    r"\t, \0, \\, %%%%"
)
_FORMAT_DOC: Final = (
    "what stands in a line: `%k` key, `%a` attribute, `%v` value, with text between them, such as `'%k:%a:%v'`; "
    r"`%%`, `\t`, `\0`, `\\`. A field ends where the text after it begins. A line of another form ends the command"
)
_JSON_HELP: Final = "lines are JSON objects, as consume --json prints them; -v prints such, too"


@dataclass(slots=True)
class _Counts:
    """Numbers of lines read, messages acknowledged, and messages sent without their properties."""

    read: int = 0
    sent: int = 0
    stripped: int = 0


@command(
    "produce",
    "send lines of files or of the standard input",
    TOPIC,
    argument("files", nargs="*", default=[], metavar="FILE", help="default: the standard input, also as -"),
    argument(
        "-m",
        "--message",
        metavar="TEXT",
        action="append",
        help="send this text instead; repeatable",
        doc="send this text; may be repeated",
    ),
    argument("-a", "--attribute", metavar="TEXT", help="attribute (RocketMQ: tag) of every message"),
    argument(
        "-p",
        "--partition",
        metavar="PARTITION",
        help="such as 0-1, or broker-a:1",
        doc="send to this partition, such as `0-1` or `broker-a:1`; by default the partitions take turns",
    ),
    argument(
        "-H",
        "--property",
        metavar="NAME=VALUE",
        action="append",
        help="RocketMQ: property of every message; repeatable",
        doc="RocketMQ: property of every message; may be repeated",
    ),
    argument(
        "--delay",
        metavar="SPAN",
        type=span_s,
        help="RocketMQ: deliver after 90s, 15m, 12h, 7d",
        doc="RocketMQ 5.x and the bundled broker: deliver after `90s`, `15m`, `12h` or `7d`",
    ),
    one_of(
        argument(
            "-k",
            "--key-separator",
            metavar="TEXT",
            help="lines are KEY TEXT VALUE",
            doc="a line is key, separator, value. The same key goes to the same partition. MetaQ does not store it, "
            "RocketMQ does",
        ),
        argument("--format", metavar="FORMAT", help=_FORMAT_HELP, doc=_FORMAT_DOC),
        argument("--json", action="store_true", help=_JSON_HELP, doc="lines are JSON objects: [below](#copy-as-json)"),
    ),
    argument(
        "--whole",
        action="store_true",
        help="each file is one message, instead of each line",
        doc="each file is one message",
    ),
    argument("-v", "--verbose", action="store_true", help="print where each message was stored"),
    examples=("t -m x", "t {folder}/lines --json"),
    list_name="files",
)
def _run(options: argparse.Namespace, profile: CommandProfile) -> int:
    from metaq.model import Partition

    partition = None if options.partition is None else Partition.parse_any(options.partition)
    parse = _parser_of(options)
    counts = _Counts()
    with profile.connect() as mq:
        target, line = target_of(mq, options, partition), StatusLine()
        try:
            with line.progress(lambda: counts.sent, f"sent to {options.topic}"):
                for lines in _inputs(options):
                    _send(lines, parse, target, counts, _shower(options, line))
        finally:
            note(f"{counted(counts.sent)} sent to {options.topic}")
            if counts.stripped:
                note(f"{counted(counts.stripped)} had properties, which MetaQ does not store")
    return 0


def _inputs(options: argparse.Namespace) -> Iterable[list[bytes]]:
    if options.message is None:
        return chunks(options.files, whole=options.whole)
    if options.files or options.whole:
        raise ValueError("--message: expected neither files nor --whole with it")
    return [[os.fsencode(text) for text in options.message]]


def _parser_of(options: argparse.Namespace) -> Parse:
    """Return a parser of a line and its number; it returns ``None`` for lines without a message."""
    attribute: str | None = options.attribute
    if options.json:
        return json_parser(attribute)
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


def _send(lines: list[bytes], parse: Parse, target: Target[Any], counts: _Counts, show: Show) -> None:
    """Send lines. An invalid line raises an error with its number, after earlier lines are stored."""
    from metaq.client.rocketmq.records import UnsendableMessage

    read, messages, numbers, refused = list[Line](), list[Any](), list[int](), None
    for line in lines:
        counts.read += 1
        try:
            found = parse(line, counts.read)
            if found is not None:
                messages.append(_message(target, found, counts.read))
                read.append(found)
                numbers.append(counts.read)
        except ValueError as error:
            refused = error
            break
    try:
        show(_store(target, read, messages, counts))
    except UnsendableMessage as error:  # none of them was sent
        at = error.number
        refused = ValueError(f"line {numbers[at]}: {error.reason}")
        show(_store(target, read[:at], messages[:at], counts))
    if refused is not None:
        raise refused


def _message(target: Target[Any], line: Line, number: int) -> object:
    try:
        return target.message(line)
    except ValueError as error:
        raise ValueError(f"line {number}: {error}") from None


def _store(target: Target[Any], lines: list[Line], messages: list[Any], counts: _Counts) -> Sequence[Sent | RocketSent]:
    from metaq.errors import SendFailed

    if not lines:
        return []
    try:
        sent = target.send(lines, messages)
    except SendFailed as error:
        counts.sent += sum(one is not None for one in error.sent)
        raise
    counts.sent += len(sent)
    counts.stripped += target.stripped(lines)
    return sent


def _shower(options: argparse.Namespace, line: StatusLine) -> Show:
    """Return the function that reports stored messages, if requested."""
    if not options.verbose:
        return lambda sent: None
    text = _json_line if options.json else _text_line

    def show(sent: Sequence[Sent | RocketSent]) -> None:
        with line.hidden():
            for one in sent:
                print(text(one))

    return show


def _text_line(one: Sent | RocketSent) -> str:
    return f"{one.topic}/{one.partition} offset {one.offset} id {one.message_id}"


def _json_line(one: Sent | RocketSent) -> str:
    where = {"topic": one.topic, "partition": str(one.partition), "offset": one.offset}
    return json.dumps({**where, "message_id": one.message_id})
