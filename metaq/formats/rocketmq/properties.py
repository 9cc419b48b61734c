"""Properties of a message: names and values in one text, ``name \\x01 value \\x02 name \\x01 value``.

Some versions write a ``\\x02`` after the last pair, others do not; both are read.

Source: docs/remoting-protocol.md, "Properties".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from metaq.errors import FieldError

NAME_END: Final = "\x01"
PAIR_END: Final = "\x02"

BYTES_MAX: Final = 32_767
"""Longest text in UTF-8; a broker adds some properties."""

KEYS: Final = "KEYS"
"""Look-up keys of the message: words separated by blanks."""
TAGS: Final = "TAGS"
"""The tag."""
UNIQ_KEY: Final = "UNIQ_KEY"
"""The producer's id of the message."""
WAIT: Final = "WAIT"
"""Whether the broker responds only when the message is stored as configured."""
DELAY: Final = "DELAY"
"""The delay level."""
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
"""Delay in milliseconds (5.x)."""
TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
"""Delay in seconds."""
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
"""Delivery time, in milliseconds since 1970 (5.x)."""
RETRY_TOPIC: Final = "RETRY_TOPIC"
"""The first topic of a message that is in a group's retry topic or among its dead letters."""
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
"""The id that such a message had in its first topic."""
TRANSACTION_MESSAGE: Final = "TRAN_MSG"
"""``true`` makes a half message."""
PRODUCER_GROUP: Final = "PGROUP"
"""The producer group that the broker asks about a half message."""
CHECK_IMMUNITY_S: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
"""Seconds before the broker asks about a half message."""
CORRELATION_ID: Final = "CORRELATION_ID"
"""Which request a reply answers."""
REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
"""The id of the client that waits for the reply to a request."""
TTL: Final = "TTL"
"""How long that client waits, in milliseconds."""
MESSAGE_TYPE: Final = "MSG_TYPE"
"""``reply`` marks a reply."""
CLUSTER: Final = "CLUSTER"
"""The cluster of the broker that stored the message."""
INNER_NUM: Final = "INNER_NUM"
"""Number of messages of an inner batch."""

_RESERVED: Final = (
    "KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP MIN_OFFSET MAX_OFFSET BUYER_ID "
    "ORIGIN_MESSAGE_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG RECONSUME_TIME MSG_REGION TRACE_ON UNIQ_KEY "
    "EXTEND_UNIQ_INFO MAX_RECONSUME_TIMES CONSUME_START_TIME INNER_NUM INNER_BASE DUP_INFO "
    "CHECK_IMMUNITY_TIME_IN_SECONDS TRAN_PREPARED_QUEUE_OFFSET __transactionId__ TRANSACTION_CHECK_TIMES "
    "INSTANCE_ID CORRELATION_ID REPLY_TO_CLIENT TTL ARRIVE_TIME PUSH_REPLY_TIME CLUSTER MSG_TYPE POP_CK "
    "POP_CK_OFFSET 1ST_POP_TIME __SHARDINGKEY TIMER_DELAY_SEC TIMER_DELIVER_MS TIMER_DELAY_MS "
    "TIMER_OUT_MS TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS TIMER_ROLL_TIMES TIMER_DEL_UNIQKEY TIMER_DELAY_LEVEL "
    "DLQ_ORIGIN_TOPIC DLQ_ORIGIN_MESSAGE_ID __BORNHOST BORN_HOST BORN_TIMESTAMP __CRC32# "
    "INNER_MULTI_DISPATCH INNER_MULTI_QUEUE_OFFSET __LITE_TOPIC TIMER_ROLL_LABEL"
)
RESERVED: Final = frozenset(_RESERVED.split())
"""Names with a special meaning. In a stored message they describe how it was stored, and are not copied to a new
message; tag and keys have their own fields.
"""


def parse_properties(text: str | bytes) -> dict[str, str]:
    """Return names and values. A pair without a name or a value is dropped; the last of several pairs with one name
    counts.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    properties = {}
    for pair in text.split(PAIR_END):
        name, _, value = pair.partition(NAME_END)
        if name and value:
            properties[name] = value
    return properties


def write_properties(properties: Mapping[str, str]) -> str:
    """Return ``properties`` as text, without a trailing separator.

    Raises:
        FieldError: A name or a value is empty or has a separator in it, or the text is longer than ``BYTES_MAX``.
    """
    pairs = []
    for name, value in properties.items():
        if not name or NAME_END in name or PAIR_END in name:
            raise FieldError("a message", f"property {name}", name, "named by a text without \\x01 and \\x02")
        if not value or PAIR_END in value:
            raise FieldError("a message", f"property {name}", value, "a text that is not empty and has no \\x02")
        pairs.append(f"{name}{NAME_END}{value}")
    text = PAIR_END.join(pairs)
    if len(text) * 4 > BYTES_MAX and len(text.encode("utf-8", "replace")) > BYTES_MAX:
        raise FieldError("a message", "properties", f"{len(text)} characters", f"at most {BYTES_MAX} bytes")
    return text
