"""Implements ``source.backend.LastMessages``: a message is identified by its store time, its body's checksum and its
size.

If a queue was restored from an older copy and has grown again, its messages there were stored later.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Final

from metaq.backends.rocketmq.errors import RequestRefused
from metaq.backends.rocketmq.names import with_namespace
from metaq.backends.rocketmq.pool import SessionPool
from metaq.backends.rocketmq.reads.pulls import PulledQueue, PulledRecords, read_outcome
from metaq.backends.rocketmq.reads.record_walk import WantedRecords, measure_records, store_times
from metaq.backends.rocketmq.routes import Routes
from metaq.errors import ConnectionFailed, DeadlineExceeded
from metaq.model import Buffer, TopicPartition
from metaq.net.retry import RetryPolicy, persist
from metaq_spark.offsets import Ranges

ASKED_MAX: Final = 64
"""Limit on pulls in flight to one broker."""

_MESSAGE: Final = struct.Struct(">qIi")
"""Store time (ms), checksum of the body and bytes of the record."""

_SIZE: Final = struct.Struct(">i4xI")
"""Start of a record: its size, and the checksum of its body."""


class StoredMessages:
    """Implements ``LastMessages``."""

    def __init__(self, pool: SessionPool, routes: Routes, group: str, policy: RetryPolicy) -> None:
        self._pool, self._routes, self._policy = pool, routes, policy
        self._group = with_namespace(group, routes.namespace)

    def before(self, spans: Ranges) -> dict[TopicPartition, str]:
        return self._messages({where: span.end - 1 for where, span in spans.items()})

    def differing(self, asked: Mapping[TopicPartition, tuple[int, str]]) -> set[TopicPartition]:
        now = self._messages({where: offset - 1 for where, (offset, _) in asked.items() if offset > 0})
        return {where for where, message in now.items() if message != asked[where][1]}

    def stored_ms(self, message: str) -> int | None:
        return int(_MESSAGE.unpack(bytes.fromhex(message))[0])

    def _messages(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, str]:
        """Return the message at each offset, if there is one."""
        by_broker: dict[str, list[TopicPartition]] = {}
        for where in offsets:
            by_broker.setdefault(where.partition.broker_name, []).append(where)
        found: dict[TopicPartition, str] = {}
        for name, queues in by_broker.items():
            for first in range(0, len(queues), ASKED_MAX):
                some = {where: offsets[where] for where in queues[first : first + ASKED_MAX]}
                found |= persist(partial(self._of_broker, name, some), self._policy, self._pool.clock)
        return found

    def _of_broker(self, name: str, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, str]:
        address = self._routes.read_address(name)
        try:
            with self._pool.lease(address) as session:
                commands = [self._pulled(where).pull(at, 1) for where, at in offsets.items()]
                opaques = session.post_all(commands, "pulls of the last messages read")
                responses = [session.wait(opaque) for opaque in opaques]
                found: dict[TopicPartition, str] = {}
                for (where, at), command, response in zip(offsets.items(), commands, responses, strict=True):
                    with suppress(RequestRefused):  # for example a slave that does not know the topic yet
                        outcome = read_outcome(session, command, response)
                        message = self._message(where, at, outcome.data) if isinstance(outcome, PulledRecords) else None
                        found |= {} if message is None else {where: message}
                return found
        except (ConnectionFailed, DeadlineExceeded):
            self._routes.avoid(address)
            raise

    def _message(self, where: TopicPartition, at: int, data: memoryview) -> str | None:
        name = with_namespace(where.topic, self._routes.namespace).encode()
        measured = measure_records(data, WantedRecords(name, where.partition.index, at, at + 1))
        record = data[measured.begin : measured.stop]
        return _message(record) if measured.records == 1 else None

    def _pulled(self, where: TopicPartition) -> PulledQueue:
        topic = with_namespace(where.topic, self._routes.namespace)
        return PulledQueue(topic, where.partition.broker_name, where.partition.index, self._group)


def _message(record: Buffer) -> str:
    size, checksum = _SIZE.unpack_from(record)
    ((_, stored_ms),) = store_times(record)
    return _MESSAGE.pack(stored_ms, checksum, size).hex()
