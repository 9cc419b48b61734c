"""The bodies of ``group`` requests and their answers: JSON objects, the same on both sides.

==========  =============================================================  =========================================
action      request                                                        answer
==========  =============================================================  =========================================
join        token, consumer, session_ms, topics                            members, generation, owned
leave       token
claim       token, partitions: own exactly these, as far as they are free  owned
release     token, partitions
load        partitions                                                     offsets
save        token, offsets, expected                                       changed
list                                                                       members, offsets
forget      forget the group and its offsets; refused while it has members
names                                                                      names: all groups; GROUP is any
==========  =============================================================  =========================================

A partition is ``[TOPIC, INDEX]``. An offset is ``[TOPIC, INDEX, OFFSET, INCARNATION]``: ``OFFSET`` is
``MESSAGE_ID-OFFSET``, both may be ``null``. Nothing here does I/O.

Source: docs/protocol.md, "group".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

SESSION_MS_MIN: Final = 100
SESSION_MS_MAX: Final = 600_000

LocalPartition = tuple[str, int]
"""Topic, and index of the partition at the broker."""


class StoredOffset(NamedTuple):
    """What a broker stores for a group and a partition: the texts of its offset and of the partition's incarnation."""

    offset: str | None
    incarnation: str | None


def encode_body(**fields: object) -> bytes:
    """Return the JSON object of ``fields``."""
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_body(body: bytes | str) -> GroupBody:
    """Parse a body.

    Raises:
        ValueError: It is not a JSON object.
    """
    try:
        fields = json.loads(body)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"the body of a group request is no JSON object: {error}") from None
    if not isinstance(fields, dict):
        raise ValueError("the body of a group request is no JSON object")
    return GroupBody(fields)


class GroupBody:
    """The fields of a body. Each method raises ``ValueError`` if the field is missing or of another type."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = fields

    def text(self, name: str) -> str:
        value = self._fields.get(name)
        if not isinstance(value, str) or not value:
            raise _wrong(name, value, "a text that is not empty")
        return value

    def number(self, name: str, least: int, most: int) -> int:
        value = self._fields.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise _wrong(name, value, f"a number of {least}..{most}")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        value = self._fields.get(name)
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise _wrong(name, value, "a list of texts")
        return tuple(value)

    def members(self) -> dict[str, list[str]]:
        """Return consumer id -> topics."""
        value = self._fields.get("members")
        if not isinstance(value, dict):
            raise _wrong("members", value, "an object")
        return {consumer: list(GroupBody(value).texts(consumer)) for consumer in value}

    def places(self, name: str) -> list[LocalPartition]:
        return [self._local(name, row) for row in self._rows(name, 2)]

    def offsets(self, name: str) -> dict[LocalPartition, StoredOffset]:
        found: dict[LocalPartition, StoredOffset] = {}
        for row in self._rows(name, 4):
            offset, incarnation = row[2:]
            if not all(text is None or isinstance(text, str) for text in (offset, incarnation)):
                raise _wrong(name, row, "[TOPIC, INDEX, OFFSET, INCARNATION]")
            found[self._local(name, row)] = StoredOffset(offset, incarnation)
        return found

    def has(self, name: str) -> bool:
        return name in self._fields

    def _rows(self, name: str, length: int) -> Iterable[list[Any]]:
        value = self._fields.get(name)
        if not isinstance(value, list) or not all(isinstance(row, list) and len(row) == length for row in value):
            raise _wrong(name, value, f"a list of lists of {length}")
        return value

    def _local(self, name: str, row: list[Any]) -> LocalPartition:
        topic, index = row[:2]
        if not isinstance(topic, str) or not isinstance(index, int) or isinstance(index, bool) or index < 0:
            raise _wrong(name, row, "[TOPIC, INDEX, ...]")
        return topic, index


def _wrong(name: str, value: object, wanted: str) -> ValueError:
    return ValueError(f"group request: {name} is {str(value)[:80]!r}; expected {wanted}")


def offset_rows(offsets: Mapping[LocalPartition, StoredOffset]) -> list[list[object]]:
    """Return the JSON form of offsets."""
    return [[topic, index, *stored] for (topic, index), stored in offsets.items()]
