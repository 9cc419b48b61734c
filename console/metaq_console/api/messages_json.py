"""Messages in JSON: the value as a text or as Base64, and only its beginning if it is long."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from metaq_console.cluster.values import FoundMessage

VALUE_BYTES: Final = 64 << 10
"""Bytes of a value that an answer has, unless the request says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageJson:
    """A message. Exactly one of ``value`` and ``value_base64`` is there, and may be only the beginning: ``is_cut``."""

    topic: str
    partition: str
    offset: int
    next_offset: int
    """Where a reader continues."""
    message_id: str
    timestamp_ms: int | None
    attribute: str | None
    """MetaQ's attribute, RocketMQ's tag."""
    keys: tuple[str, ...]
    properties: Mapping[str, str] | None
    attempts: int | None
    """How often it was delivered again."""
    size: int
    """Bytes of the whole value."""
    is_cut: bool
    value: str | None
    """The value, if it is UTF-8."""
    value_base64: str | None
    """The value, if it is not."""


def message_json(message: FoundMessage, value_bytes: int = VALUE_BYTES) -> MessageJson:
    """Return a message with up to ``value_bytes`` bytes of its value."""
    data = message.data
    shown = data[:value_bytes]
    text = text_of(shown, is_cut=len(shown) < len(data))
    return MessageJson(
        topic=message.topic,
        partition=message.partition,
        offset=message.offset,
        next_offset=message.next_offset,
        message_id=message.message_id,
        timestamp_ms=message.timestamp_ms,
        attribute=message.attribute,
        keys=message.keys,
        properties=message.properties,
        attempts=message.attempts,
        size=len(data),
        is_cut=len(shown) < len(data),
        value=text,
        value_base64=None if text is not None else base64.b64encode(shown).decode(),
    )


def text_of(data: bytes, *, is_cut: bool) -> str | None:
    """Return UTF-8 as a text, ``None`` if it is something else; a character that was cut off is left out."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        if is_cut and error.end == len(data) and len(data) - error.start < 4 and error.start > 0:
            return data[: error.start].decode()
        return None
