"""``metaq consume``: messages to the standard output, those that are there or also those that follow."""

from __future__ import annotations

import argparse
import datetime
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from metaq.cli.output import json_value, time_text

if TYPE_CHECKING:
    from metaq.cli.profile import Profile
    from metaq.client.browser import Start
    from metaq.client.records import Received
    from metaq.client.rocketmq.records import RocketReceived
    from metaq.model import Partition

DEFAULT_FORMAT: Final = r"%v\n"
_FORMAT_HELP: Final = (
    "%%t topic, %%p partition, %%o offset, %%i id, %%T time, %%a attribute, %%v value, %%s its bytes, %%%% a percent "
    r"sign; \n, \t, \0, \\ (default: %%v\n)"
)
_START_HELP: Final = (
    "earliest (default), latest, a time in ISO 8601, @MS since 1970, a time span back from now such as 90s, 15m, 12h, "
    "7d, or an offset, with one --partition"
)
_SPAN: Final = re.compile(r"(\d{1,9})([smhd])")
_SPAN_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_GROUP_BATCH: Final = 500
_GROUP_WAIT_S: Final = 1.0
_GROUP_ROUNDS: Final = 15
_ESCAPES: Final = {"n": b"\n", "t": b"\t", "0": b"\0", "\\": b"\\"}
_TOKEN: Final = re.compile(r"%(.?)|\\(.?)|([^%\\]+)", re.DOTALL)

Write = Callable[["Received | RocketReceived"], bytes]


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``consume``."""
    parser = commands.add_parser("consume", help="print messages of a topic")
    parser.add_argument("topic")
    parser.add_argument("-f", "--follow", action="store_true", help="go on with what is sent later")
    parser.add_argument("-n", "--count", type=_count, metavar="N", help="stop after N messages")
    parser.add_argument("--from", dest="start", default="earliest", metavar="START", help=_START_HELP)
    parser.add_argument("-p", "--partition", action="append", metavar="PARTITION", help="only this one; repeatable")
    parser.add_argument("-a", "--attribute", metavar="TEXT", help="only messages with this attribute (RocketMQ: tag)")
    parser.add_argument("-g", "--grep", metavar="TEXT", help="only messages whose value contains this text")
    parser.add_argument("--group", metavar="GROUP", help="as a consumer of this group: go on where it was")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--format", metavar="FORMAT", default=DEFAULT_FORMAT, help=_FORMAT_HELP)
    form.add_argument("--json", action="store_true", help="one JSON object a line")
    form.add_argument("--hex", action="store_true", help="values in hexadecimal, one a line")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace, profile: Profile) -> int:
    from metaq.model import Partition

    partitions = None if options.partition is None else [Partition.parse_any(name) for name in options.partition]
    start = parse_start(options.start, partitions)
    write = _json if options.json else _hex if options.hex else compile_format(options.format)
    out = sys.stdout.buffer
    if options.group is not None:
        return _run_in_group(options, profile, start, write)
    with profile.connect() as mq:
        browser = mq.browse(options.topic, partitions=partitions, start=start, follow=options.follow)
        for number, message in enumerate(_picked(browser, options.attribute, options.grep), 1):
            out.write(write(message))
            if options.follow:
                out.flush()
            if number == options.count:
                break
        out.flush()
    return 0


def _run_in_group(options: argparse.Namespace, profile: Profile, start: Start, write: Write) -> int:
    """Print what the group has not read; a message counts as read when it was written to the output."""

    if options.partition is not None:
        raise ValueError("--partition: with --group, the group says which partitions are read")
    left, idle, out = options.count, 0, sys.stdout.buffer
    with (
        profile.connect_metaq("consume --group") as mq,
        mq.consumer(options.group, [options.topic], start=start, auto_ack=False) as consumer,
    ):
        mq.cluster.describe(options.topic)  # an unknown topic is an error, not one to wait for
        while left != 0:
            messages = consumer.fetch(_GROUP_BATCH if left is None else 1, timeout=_GROUP_WAIT_S)
            printed = list(_picked(messages, options.attribute, options.grep))
            out.write(b"".join(map(write, printed)))
            out.flush()
            for message in messages:
                message.ack()
            if left is not None:
                left -= len(printed)
            if messages or options.follow:
                continue
            if consumer.assignment and not any(consumer.lag().values()):
                break
            idle += not consumer.assignment
            if idle == _GROUP_ROUNDS:
                raise ValueError(f"group {options.group!r}: no partition is free, other consumers have all of them")
    return 0


def _picked(
    messages: Iterable[Received | RocketReceived], attribute: str | None, text: str | None
) -> Iterator[Received | RocketReceived]:
    wanted = None if text is None else text.encode()
    for message in messages:
        if (attribute is None or message.attribute == attribute) and (wanted is None or wanted in message.data):
            yield message


def parse_start(text: str, partitions: list[Partition] | None, now_ms: Callable[[], int] | None = None) -> Start:
    """Read the argument of ``--from``; ``now_ms`` is the clock, in ms since 1970.

    Raises:
        ValueError: It is none of the forms, or an offset without exactly one partition.
    """
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    if text.isdecimal():
        if partitions is None or len(partitions) != 1:
            raise ValueError(f"--from {text}: an offset needs exactly one --partition")
        return {partitions[0]: int(text)}
    return parse_time(text, "--from", now_ms)


def parse_time(text: str, option: str, now_ms: Callable[[], int] | None = None) -> int:
    """Read a time as ms since 1970: ISO 8601 (local time without an offset), ``@MS``, or a span back from now.

    Raises:
        ValueError: It is none of these.
    """
    if re.fullmatch(r"@\d{1,15}", text):
        return int(text[1:])
    if match := _SPAN.fullmatch(text):
        now = now_ms() if now_ms is not None else int(datetime.datetime.now().timestamp() * 1000)
        return max(0, now - int(match[1]) * _SPAN_S[match[2]] * 1000)
    try:
        return max(0, int(datetime.datetime.fromisoformat(text).timestamp() * 1000))
    except (ValueError, OverflowError):
        expected = "a time such as 2026-01-31T12:00:00Z, @1700000000000 or 15m"
        also = "earliest, latest, an offset, or " if option == "--from" else ""
        raise ValueError(f"{option} {text}: expected {also}{expected}") from None


def compile_format(text: str) -> Write:
    """Return a function that writes a message in ``text``; see ``--help`` for what may stand in it.

    Raises:
        ValueError: A letter behind ``%`` or a backslash is unknown.
    """
    parts: list[bytes | Write] = []
    for match in _TOKEN.finditer(text):
        percent, escape, plain = match.groups()
        if plain is not None:
            parts.append(plain.encode())
        elif percent is not None and percent in _FIELDS:
            parts.append(_FIELDS[percent])
        elif escape is not None and escape in _ESCAPES:
            parts.append(_ESCAPES[escape])
        else:
            allowed = ", ".join(f"%{letter}" for letter in _FIELDS)
            raise ValueError(rf"--format: {match[0]!r} is unknown; allowed are {allowed}, \n, \t, \0 and \\")
    return lambda message: b"".join(part if isinstance(part, bytes) else part(message) for part in parts)


_FIELDS: Final[dict[str, Write]] = {
    "t": lambda message: message.topic.encode(),
    "p": lambda message: str(message.partition).encode(),
    "o": lambda message: str(message.offset).encode(),
    "i": lambda message: str(message.message_id).encode(),
    "T": lambda message: (time_text(message.timestamp_ms) or "-").encode(),
    "a": lambda message: (message.attribute or "").encode(),
    "v": lambda message: message.data,
    "s": lambda message: str(len(message.data)).encode(),
    "%": lambda message: b"%",
}


def _json(message: Received | RocketReceived) -> bytes:
    row = {
        "topic": message.topic,
        "partition": str(message.partition),
        "offset": message.offset,
        "message_id": message.message_id,
        "timestamp": time_text(message.timestamp_ms),
        "attribute": message.attribute,
        **_only_rocketmq(message),
        **json_value(message.data),
    }
    return json.dumps(row, ensure_ascii=False).encode() + b"\n"


def _only_rocketmq(message: Received | RocketReceived) -> dict[str, object]:
    properties = getattr(message, "properties", None)
    return {} if properties is None else {"properties": dict(properties)}


def _hex(message: Received | RocketReceived) -> bytes:
    return message.data.hex().encode() + b"\n"


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number above 0")
    return int(text)
