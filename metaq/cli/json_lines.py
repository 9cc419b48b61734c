"""Messages that ``metaq produce --json`` reads, one JSON object a line: the form that ``metaq consume --json`` prints.

Fields about the stored position (topic, offset, id, time) are ignored, and so are RocketMQ's own properties, except
TAGS and KEYS: they are the attribute and the key of a line that has none.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from metaq.cli.line_format import NO_PROPERTIES, Line

if TYPE_CHECKING:
    from metaq.client.partitioners import Partitioner
    from metaq.model import Partition

_SENT: Final = ("value", "value_base64", "key", "attribute", "tag", "properties", "partition")
_IGNORED: Final = ("topic", "offset", "message_id", "timestamp")
FIELDS: Final = frozenset(_SENT + _IGNORED)

_KEY: Final = b"k"
_PARTITION: Final = b"p"


def json_parser(attribute: str | None) -> Callable[[bytes, int], Line | None]:
    """Return a parser of a line and its number; ``attribute`` is for lines without one. Blank lines yield ``None``.

    The parser raises:
        ValueError: The line is not such an object; the error says where and why.
    """

    def parse(line: bytes, number: int) -> Line | None:
        if not line.strip():
            return None
        try:
            return _line(_object(line), attribute)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None

    return parse


def _object(line: bytes) -> dict[str, object]:
    try:
        found = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start + 1} is not UTF-8") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"it is no JSON object: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"it is no JSON object: {line[:40].decode(errors='replace')}")
    if unknown := found.keys() - FIELDS:
        raise ValueError(f"unknown field {min(unknown)!r}; expected {', '.join(_SENT)}")
    return found


def _line(given: dict[str, object], attribute: str | None) -> Line:
    properties = _properties(given)
    tag, named = _text(given, "tag"), _text(given, "attribute")
    if tag is not None and named is not None and tag != named:
        raise ValueError(f"attribute {named!r} and tag {tag!r}: expected one of them")
    found = next((one for one in (named, tag, properties.get("TAGS")) if one is not None), attribute)
    key = _text(given, "key")
    if key is None:
        key = properties.get("KEYS")
    own = _own(properties) if properties else NO_PROPERTIES
    return Line(_value(given), None if key is None else key.encode(), found, own, _partition(given))


def _value(given: dict[str, object]) -> bytes:
    text, coded = _text(given, "value"), _text(given, "value_base64")
    if text is not None and coded is not None:
        raise ValueError("value and value_base64: expected one of them")
    if text is not None:
        return text.encode()
    if coded is None:
        raise ValueError("expected value, a text, or value_base64")
    try:
        return base64.b64decode(coded, validate=True)
    except ValueError as error:
        raise ValueError(f"value_base64: {error}") from None


def _text(given: Mapping[str, object], name: str) -> str | None:
    found = given.get(name)
    if found is None:
        return None
    if not isinstance(found, str):
        raise ValueError(f"{name}: expected a text, got {json.dumps(found)[:40]}")
    if not found.isascii():
        _require_unicode(name, found)
    return found


def _require_unicode(name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name}: {text[error.start]!r} is not a character") from None


def _properties(given: dict[str, object]) -> dict[str, str]:
    found = given.get("properties")
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ValueError(f"properties: expected an object, got {json.dumps(found)[:40]}")
    for name in found:
        _require_unicode("properties", name)
        if _text(found, name) is None:
            raise ValueError(f"property {name!r}: expected a text, got null")
    return found


def _own(properties: Mapping[str, str]) -> Mapping[str, str]:
    """Return the properties that are not RocketMQ's own."""
    from metaq.formats.rocketmq.properties import RESERVED

    return {name: value for name, value in properties.items() if name not in RESERVED}


def _partition(given: dict[str, object]) -> str | None:
    from metaq.model import Partition

    found = _text(given, "partition")
    if found is not None:
        Partition.parse_any(found)
    return found


def partition_key(line: Line) -> bytes | None:
    """Return the key for ``keeping_partitions``: the partition in the line, else its key."""
    if line.partition is not None:
        return _PARTITION + line.partition.encode()
    return None if line.key is None else _KEY + line.key


def keeping_partitions() -> Partitioner:
    """Return a partitioner that uses the partition named in a message, if the topic has it.

    All messages that name a given other partition go to one partition of the topic, so that they keep their order.
    """
    from metaq.client.partitioners import by_key
    from metaq.model import Partition

    otherwise = by_key()
    chosen: dict[bytes, Partition] = {}

    def choose(topic: str, partitions: Sequence[Partition], key: bytes | None) -> Partition:
        if key is None or key[:1] == _KEY:
            return otherwise(topic, partitions, None if key is None else key[1:])
        if (known := chosen.get(key)) is not None and known in partitions:
            return known
        named = Partition.parse_any(key[1:].decode())
        chosen[key] = named if named in partitions else otherwise(topic, partitions, key[1:])
        return chosen[key]

    return choose
