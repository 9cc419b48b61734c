"""How messages are printed: by a format of the user's, as JSON, in hexadecimal."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from metaq.cli.command import argument, one_of
from metaq.cli.output import json_value, time_text

if TYPE_CHECKING:
    from metaq.client.records import Received
    from metaq.client.rocketmq.records import RocketReceived

DEFAULT_FORMAT: Final = r"%v\n"
_FORMAT_HELP: Final = (
    "%%t topic, %%p partition, %%o offset, %%i id, %%T time, %%a attribute or tag, %%k keys, %%v value, %%s its bytes, "
    r"%%%% a percent sign; \n, \t, \0, \\ (default: %%v\n)"
)
_FORMAT_DOC: Final = (
    "`%t` topic, `%p` partition, `%o` offset, `%i` message id, `%T` time, `%a` attribute, `%k` keys (of RocketMQ), "
    r"`%v` value, `%s` bytes of the value, `%%`; `\n`, `\t`, `\0`, `\\`. Default `%v\n`"
)
ESCAPES: Final = {"n": b"\n", "t": b"\t", "0": b"\0", "\\": b"\\"}
TOKEN: Final = re.compile(r"%(.?)|\\(.?)|([^%\\]+)", re.DOTALL)
"""A piece of a format: a letter after ``%``, one after a backslash, or text."""

Write = Callable[["Received | RocketReceived"], bytes]


FORM: Final = (
    one_of(
        argument("--format", metavar="FORMAT", default=DEFAULT_FORMAT, help=_FORMAT_HELP, doc=_FORMAT_DOC),
        argument(
            "--json",
            action="store_true",
            help="one JSON object a line",
            doc="one JSON object a line. A value that is not UTF-8 stands as `value_base64`",
        ),
        argument("--hex", action="store_true", help="values in hexadecimal, one a line", doc="values in hexadecimal"),
    ),
)
"""Options for the output format of messages."""


def writer_of(options: argparse.Namespace) -> Write:
    """Return the writer for these options.

    Raises:
        ValueError: The format has an unknown letter.
    """
    return _json if options.json else _hex if options.hex else compile_format(options.format)


def compile_format(text: str) -> Write:
    """Return a function that writes a message in the format ``text``, which ``--help`` describes.

    Raises:
        ValueError: A letter after ``%`` or a backslash is unknown.
    """
    parts: list[bytes | Write] = []
    for match in TOKEN.finditer(text):
        percent, escape, plain = match.groups()
        if plain is not None:
            parts.append(plain.encode())
        elif percent is not None and percent in _FIELDS:
            parts.append(_FIELDS[percent])
        elif escape is not None and escape in ESCAPES:
            parts.append(ESCAPES[escape])
        else:
            allowed = ", ".join(f"%{letter}" for letter in _FIELDS)
            raise ValueError(rf"--format: {match[0]!r} is unknown; expected {allowed}, \n, \t, \0 and \\")
    if text == DEFAULT_FORMAT:  # the usual format, in a third of the time
        return lambda message: message.data + b"\n"
    return lambda message: b"".join(part if isinstance(part, bytes) else part(message) for part in parts)


_FIELDS: Final[dict[str, Write]] = {
    "t": lambda message: message.topic.encode(),
    "p": lambda message: str(message.partition).encode(),
    "o": lambda message: str(message.offset).encode(),
    "i": lambda message: str(message.message_id).encode(),
    "T": lambda message: (time_text(message.timestamp_ms) or "-").encode(),
    "a": lambda message: (message.attribute or "").encode(),
    "k": lambda message: " ".join(getattr(message, "keys", ())).encode(),
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
