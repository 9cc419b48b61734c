"""Looks up single messages at one broker: by the broker's id (33), the producer's id or a key (12).

An index stores hashes of keys: a broker may return messages of a key with the same hash, so the keys are compared here.
"""

from __future__ import annotations

from typing import Final

from metaq.backends.rocketmq.pool import SessionPool
from metaq.errors import CorruptRecord
from metaq.formats.rocketmq.properties import KEYS, UNIQ_KEY
from metaq.formats.rocketmq.records import Record, read_record, read_records
from metaq.model import INT64_MAX, Address
from metaq.protocols.remoting.codes import ResponseCode
from metaq.protocols.remoting.headers import to_request
from metaq.protocols.remoting.headers.pulls import QueryMessage, ViewMessageById

FOUND_MAX: Final = 64
"""Limit on messages of one response: as many as a Java broker returns for a key."""

_NOT_THERE: Final = ("can not find message", "java.lang.IllegalArgumentException: newLimit")
"""Start of a broker's error text if no message begins at the offset; the code is the same as for other failures.

The second one is from brokers that read bytes inside a message as a length.
"""


def view_message(
    pool: SessionPool, broker_name: str, address: Address, physical_offset: int, topic: str | None = None
) -> Record | None:
    """Return the message that begins at ``physical_offset`` of a broker's log, ``None`` if none does.

    Raises:
        RequestRefused, AccessDenied: The broker refuses.
        ConnectionFailed, DeadlineExceeded, ProtocolError: It could not be asked.
    """
    action = f"reading the message at offset {physical_offset} of its log"
    command = to_request(ViewMessageById(offset=physical_offset, topic=topic), broker_name=broker_name)
    with pool.lease(address) as session:
        response = session.call(command, action)
        refusal = None if response.code == ResponseCode.SUCCESS else session.refusal(response, command, action)
    if refusal is None:
        return _record_at(response.body, physical_offset)
    if refusal.text.startswith(_NOT_THERE):
        return None
    raise refusal


def _record_at(body: bytes, physical_offset: int) -> Record | None:
    """Parse the record; a broker of 4.x returns any bytes at the offset, even from inside a message."""
    try:
        record = read_record(body)
    except CorruptRecord:
        return None
    return record if record.physical_offset == physical_offset else None


def query_messages(
    pool: SessionPool,
    broker_name: str,
    address: Address,
    topic: str,
    key: str,
    *,
    unique: bool = False,
    begin_ms: int = 0,
    end_ms: int = INT64_MAX,
) -> list[Record]:
    """Return messages of ``topic`` that have the key ``key``, or with ``unique`` the UNIQ_KEY; at most ``FOUND_MAX``.

    ``begin_ms`` and ``end_ms`` (since 1970) limit the store time.

    Raises:
        CorruptRecord: A message is damaged.
        RequestRefused, AccessDenied: The broker refuses.
        ConnectionFailed, DeadlineExceeded, ProtocolError: It could not be asked.
    """
    action = f"looking for {'id' if unique else 'key'} {key!r}"
    header = QueryMessage(
        topic=topic,
        key=key,
        max_num=FOUND_MAX,
        begin_timestamp=begin_ms,
        end_timestamp=end_ms,
        unique_key=True if unique else None,
    )
    command = to_request(header, broker_name=broker_name)
    with pool.lease(address) as session:
        response = session.call(command, action)
        if response.code == ResponseCode.QUERY_NOT_FOUND:
            return []
        body = session.accepted(response, command, action).body
    return [record for record in read_records(body) if _has_key(record, topic, key, unique)]


def _has_key(record: Record, topic: str, key: str, unique: bool) -> bool:
    properties = record.property_map()
    named = [properties.get(UNIQ_KEY)] if unique else properties.get(KEYS, "").split()
    return record.topic == topic and key in named
