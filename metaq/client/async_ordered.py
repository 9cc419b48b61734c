"""``OrderedProducer`` for asyncio: its spool file is accessed and acknowledgements are awaited in threads."""

from __future__ import annotations

from typing import Self

from metaq.client.ordered import OrderedProducer
from metaq.client.records import Sent
from metaq.client.shells import ClosedByAsyncBlock
from metaq.client.thread_calls import call_in_thread, open_whole
from metaq.model import Partition, TopicPartition


class AsyncOrderedProducer(ClosedByAsyncBlock):
    """``OrderedProducer`` for ``async with``. Made by ``AsyncMetaQ.ordered_producer``.

    Messages of one task are stored in the order in which the task awaits them.
    """

    def __init__(self, producer: OrderedProducer) -> None:
        super().__init__(producer)
        self._producer = producer

    async def __aenter__(self) -> Self:
        await open_whole(self._producer.__enter__, self._producer.close)
        return self

    async def send(
        self,
        topic: str,
        data: bytes | str,
        *,
        attribute: str | None = None,
        partition: Partition | None = None,
        key: bytes | str | None = None,
    ) -> Sent | None:
        """Store one message and return where it is, or ``None`` if it was spooled. Raises as
        ``OrderedProducer.send``.
        """
        return await call_in_thread(self._producer.send, topic, data, attribute=attribute, partition=partition, key=key)

    @property
    def spooled(self) -> dict[TopicPartition, int]:
        """Number of spooled messages, by partition."""
        return self._producer.spooled

    async def recover(self, timeout: float = 30.0) -> bool:
        """Send the spooled messages; return whether the spool is empty within ``timeout`` seconds."""
        return await call_in_thread(self._producer.recover, timeout)
