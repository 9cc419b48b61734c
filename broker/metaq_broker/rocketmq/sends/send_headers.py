"""Fast parsing of headers of sends: sends of one producer differ only in the time of birth and the properties.

The common fields are parsed once, and cached for later sends. Only small headers are cached.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers.fields import fields_of
from metaq.protocols.remoting.headers.sends import SendMessage

KEPT_MAX: Final = 512
KEPT_CHARACTERS_MAX: Final = 2048
"""Values of the fields that are kept, of one header."""

_DEFAULTS: Final = {
    False: {"producerGroup": "", "defaultTopic": "", "defaultTopicQueueNums": "0"},
    True: {"a": "", "c": "", "d": "0"},
}
"""Fields that RocketMQ requires in name only, by whether names are short."""

_VARYING: Final = {False: ("bornTimestamp", "properties"), True: ("g", "i")}
_COMMON: Final = {
    is_short: tuple(
        name for each in fields_of(SendMessage) if (name := each.short if is_short else each.name) not in varying
    )
    for is_short, varying in _VARYING.items()
}
"""Names of the other fields."""
_DIGITS_THAT_FIT: Final = 18


def read_send_header(command: RemotingCommand) -> tuple[SendMessage, int, str]:
    """Return the header of a send, its time of birth in milliseconds, and its properties.

    In the header itself, time of birth and properties may be another send's.

    Raises:
        FieldError: A field is missing or of another type.
    """
    ext, is_short = command.ext, command.code in SendMessage.SHORT_CODES
    born_name, properties_name = _VARYING[is_short]
    born = ext.get(born_name, "")
    common = tuple(map(ext.get, _COMMON[is_short]))
    is_plain = len(born) <= _DIGITS_THAT_FIT and born.isdecimal() and born.isascii()
    if is_plain and sum(map(len, filter(None, common))) <= KEPT_CHARACTERS_MAX:
        return _with_common(command.code, common), int(born), ext.get(properties_name, "")
    header = SendMessage.from_ext({**_DEFAULTS[is_short], **ext}, command.code)
    return header, header.born_timestamp, header.properties or ""


@lru_cache(maxsize=KEPT_MAX)
def _with_common(code: int, values: tuple[str | None, ...]) -> SendMessage:
    """Return a header from the values of the common fields, ``None`` = missing. Its time of birth is 0."""
    is_short = code in SendMessage.SHORT_CODES
    ext = {name: value for name, value in zip(_COMMON[is_short], values, strict=True) if value is not None}
    return SendMessage.from_ext({**_DEFAULTS[is_short], **ext, _VARYING[is_short][0]: "0"}, code)
