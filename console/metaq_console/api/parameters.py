"""Parameters that several operations have."""

from __future__ import annotations

import re
from typing import Final

from metaq.model import INT64_MAX
from metaq_console.api.operations import ApiParameter, flag, text, whole, word
from metaq_console.cluster.cluster_questions import COUNT_MAX
from metaq_console.cluster.scans import LIMIT_MAX, READ_DEFAULT, READ_MAX

TIME_MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999."""

TOPIC: Final = text("topic", "name of the topic", least=1, where="path", required=True)
GROUP: Final = text("group", "name of the consumer group", least=1, where="path", required=True)
TOPICS: Final = text("topic", "only this topic; may be repeated", least=1, many=True)
PARTITION: Final = text("partition", "only this partition, such as `0-1` or `broker-a:1`", least=1, most=300)
START: Final = whole("start", "index of the first row", 0, 10_000_000, default=0)
COUNT: Final = whole("count", "most rows", 1, COUNT_MAX, default=50)
CONTAINS: Final = text("text", "only names that contain this text", most=255, default="")
DESCENDING: Final = flag("descending", "whether the order is reversed")
VALUE_BYTES: Final = whole("value_bytes", "most bytes of each value", 0, 4 << 20, default=64 << 10)


def time_ms(name: str, about: str) -> ApiParameter:
    """Return a parameter that is a time."""
    return whole(name, f"{about}; milliseconds since 1970", 0, TIME_MS_MAX)


def _position(given: str) -> tuple[str, int]:
    if not re.fullmatch(r"[^@\x00]{1,300}@[0-9]{1,18}", given):
        raise ValueError("PARTITION@OFFSET, such as 0-1@345 or broker-a:1@345")
    partition, _, offset = given.rpartition("@")
    return partition, int(offset)


SCAN: Final = (
    PARTITION,
    word("from", "where to begin", ("earliest", "latest", "newest"), default="earliest"),
    whole("offset", "begin at this offset; needs `partition`", 0, INT64_MAX),
    ApiParameter(
        name="position",
        text="begin a partition at an offset, `0-1@345`; may be repeated; others begin at `from`",
        schema={"type": "string", "pattern": r"^[^@\x00]{1,300}@[0-9]{1,18}$", "maxLength": 320},
        read=_position,
        many=True,
    ),
    time_ms("since_ms", "only messages stored from this time on"),
    time_ms("until_ms", "only messages stored up to this time"),
    text("id", "only the message with this id", least=1, most=100),
    text("key", "only messages with this key, or with this attribute", least=1),
    text("attribute", "only messages with this attribute (RocketMQ: tag)"),
    text("contains", "only messages whose value contains this text", least=1, most=10_000),
    whole("limit", "most messages", 1, LIMIT_MAX, default=50),
    whole("read_max", "most messages that are read", 1, READ_MAX, default=READ_DEFAULT),
    VALUE_BYTES,
)
"""What to look for, and how far."""
