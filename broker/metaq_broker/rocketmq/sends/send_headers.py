"""Fast parsing of headers of sends: sends of one producer differ only in the time of birth and the properties.

The common fields are parsed once, and cached for later sends. Only small headers are cached.
"""

from __future__ import annotations

from dataclasses import replace
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

_KEPT: Final[dict[tuple[int | str | None, ...], SendMessage]] = {}
"""Headers by the request's code and the values of the common fields, ``None`` for one that is missing."""


def read_send_header(command: RemotingCommand) -> tuple[SendMessage, int, str]:
    """Return the header of a send, its time of birth in milliseconds, and its properties.

    In the header itself, time of birth and properties may be another send's.

    Raises:
        FieldError: A field is missing or of another type.
    """
    ext, is_short = command.ext, command.code in SendMessage.SHORT_CODES
    born_name, properties_name = _VARYING[is_short]
    born = ext.get(born_name, "")
    common = (command.code, *map(ext.get, _COMMON[is_short]))
    header = _KEPT.get(common)
    if header is not None and len(born) <= _DIGITS_THAT_FIT and born.isdecimal() and born.isascii():
        return header, int(born), ext.get(properties_name, "")
    header = SendMessage.from_ext({**_DEFAULTS[is_short], **ext}, command.code)
    varying = header.born_timestamp, header.properties or ""
    if sum(len(ext.get(name, "")) for name in _COMMON[is_short]) <= KEPT_CHARACTERS_MAX:
        if len(_KEPT) >= KEPT_MAX:
            _KEPT.clear()
        header = _KEPT[common] = replace(header, properties=None)
    return header, *varying
