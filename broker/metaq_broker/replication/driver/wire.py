"""The messages between members as bytes: a line of JSON, and after it the bytes of a run.

::

    {"kind": "RunStored", "epoch": 3, "stream": "orders-0", "end": 4711}
    {"kind": "StreamRun", "epoch": 3, "stream": "orders-0", "offset": 4000, "end": 4711, "run": 0} LF <711 bytes>

The line has the fields of the message's class; named tuples are lists, sets are sorted lists. Unknown fields are
ignored and fields with a default may be missing, so members of two versions understand each other. ``run`` is where the
file of the run begins; ``lost``: the bytes are damaged, and had so many messages.
"""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Mapping, Sequence, Set
from functools import lru_cache
from typing import Any, Final, Union, cast, get_args, get_origin, get_type_hints

from metaq.model import Buffer
from metaq_broker.log.streams.stream import StreamBytes
from metaq_broker.replication.pair.messages import PairMessage, StreamRun

_FRONT_BYTES: Final = 4096
"""The line of a run is shorter; other messages have no bytes after it."""

_KINDS: Final[dict[str, type]] = {kind.__name__: kind for kind in get_args(PairMessage)}


class MessageUnreadable(ValueError):
    """Bytes of another member are not a message; the text says why."""


def encode_message(message: PairMessage) -> list[Buffer]:
    """Return the bytes of a message in parts: its line, and the bytes of a run, without a copy of them."""
    fields: dict[str, Any] = {"kind": type(message).__name__}
    for field in dataclasses.fields(message):
        fields[field.name] = _plain(getattr(message, field.name))
    data: Buffer = b""
    if isinstance(message, StreamRun):
        run = cast("StreamBytes", message.run)
        fields["run"], data = run.file_start, run.data
        if run.lost_messages is not None:
            fields["lost"] = run.lost_messages
    line = json.dumps(fields, separators=(",", ":")).encode()
    return [line + b"\n", data] if data else [line]


def decode_message(content: Buffer) -> PairMessage:
    """Parse the bytes of a message. The bytes of a run are a view of them.

    Raises:
        MessageUnreadable: They are not a message, or of a kind that this version does not know.
    """
    front = bytes(content[:_FRONT_BYTES])
    line, line_end, _ = (front if b"\n" in front else bytes(content)).partition(b"\n")
    data = memoryview(content)[len(line) + len(line_end) :]
    try:
        fields = json.loads(line)
        kind = _KINDS[fields["kind"]]
        if kind is StreamRun:
            fields["run"] = StreamBytes(fields["offset"], fields["run"], data, fields.get("lost"))
        return cast("PairMessage", _built(kind, fields))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise MessageUnreadable(f"{type(error).__name__}: {error}: {line[:100]!r}") from None


def _plain(value: object) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, Set):
        return sorted(value)
    if isinstance(value, StreamBytes):
        return None
    return [_plain(each) for each in value] if isinstance(value, tuple | list) else value


@lru_cache(maxsize=256)
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _built(kind: type, fields: Mapping[str, Any]) -> object:
    given = {
        field.name: _typed(_hints(kind)[field.name], fields[field.name])
        for field in dataclasses.fields(kind)
        if field.name in fields
    }
    return kind(**given)


def _typed(hint: Any, value: Any) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is object:
        return value
    if origin in (Union, types.UnionType):
        [inner] = [each for each in arguments if each is not type(None)]
        return None if value is None else _typed(inner, value)
    if origin is not None and issubclass(origin, Mapping):
        return {str(key): _typed(arguments[1], each) for key, each in value.items()}
    if origin is not None and issubclass(origin, Set):
        return frozenset(_typed(arguments[0], each) for each in value)
    if origin is not None and issubclass(origin, Sequence):
        return tuple(_typed(arguments[0], each) for each in value)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _built(hint, value)
    if isinstance(hint, type) and issubclass(hint, tuple):
        return _tuple(hint, value)
    if type(value) is not hint:
        raise TypeError(f"{value!r} where {hint.__name__} is expected")
    return value


def _tuple(kind: Any, values: Sequence[Any]) -> object:
    hints = _hints(kind)
    return kind(*(_typed(hints[name], each) for name, each in zip(kind._fields, values, strict=False)))
