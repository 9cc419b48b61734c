"""Fast parsing of headers of sends: sends of one producer differ only in the time of birth and the properties.

The common fields are parsed once, and cached for later sends. Only small headers are cached.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers.sends import SendMessage

KEPT_MAX: Final = 512
KEPT_CHARACTERS_MAX: Final = 2048
"""Names and values of the fields that are kept, of one header."""

_DEFAULTS: Final = {
    False: {"producerGroup": "", "defaultTopic": "", "defaultTopicQueueNums": "0"},
    True: {"a": "", "c": "", "d": "0"},
}
"""Fields that RocketMQ requires in name only, by whether names are short."""

_VARYING: Final = {False: ("bornTimestamp", "properties"), True: ("g", "i")}
_DIGITS_THAT_FIT: Final = 18


def has_short_names(command: RemotingCommand) -> bool:
    """Return whether the fields of a send have names of one letter."""
    return command.code in SendMessage.SHORT_CODES


def read_send_header(command: RemotingCommand) -> tuple[SendMessage, int, str]:
    """Return the header of a send, its time of birth in milliseconds, and its properties.

    In the header itself, time of birth and properties may be another send's.

    Raises:
        FieldError: A field is missing or of another type.
    """
    ext = command.ext
    is_short, rest = has_short_names(command), dict(ext)
    born_name, properties_name = _VARYING[is_short]
    born, properties = rest.pop(born_name, ""), rest.pop(properties_name, "")
    fields = (*rest, *rest.values())
    is_plain = len(born) <= _DIGITS_THAT_FIT and born.isdecimal() and born.isascii()
    if is_plain and len("".join(fields)) <= KEPT_CHARACTERS_MAX:
        return _common(command.code, fields), int(born), properties
    header = SendMessage.from_ext({**_DEFAULTS[is_short], **command.ext}, command.code)
    return header, header.born_timestamp, header.properties or ""


@lru_cache(maxsize=KEPT_MAX)
def _common(code: int, fields: tuple[str, ...]) -> SendMessage:
    """Return a header from names, followed by as many values. Its time of birth is 0."""
    is_short, count = code in SendMessage.SHORT_CODES, len(fields) // 2
    ext = dict(zip(fields[:count], fields[count:], strict=True))
    return SendMessage.from_ext({**_DEFAULTS[is_short], **ext, _VARYING[is_short][0]: "0"}, code)
