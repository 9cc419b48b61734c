"""``Producer`` for asyncio. The producer's one sending thread stores the messages; the event loop awaits them.

Thread and loop exchange whole batches, not single messages. No call blocks the loop: a full window is awaited, and the
brokers of a topic are looked up in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from metaq.client.async_submissions import AwaitedWindow
from metaq.client.producer import Producer
from metaq.client.records import Sent
from metaq.client.shells import AsyncSubmittingProducer, EndedByAsyncBlock
from metaq.client.thread_calls import call_in_thread
from metaq.client.transactions import LocalTransaction, XaBranch
from metaq.model import Message, Partition


class AsyncProducer(AsyncSubmittingProducer):
    """``Producer`` for asyncio. Made by ``AsyncMetaQ.producer``; any number of tasks may use it."""

    def __init__(self, producer: Producer, *, wait_for_window: bool) -> None:
        super().__init__(producer)
        self._producer = producer
        self._window: AwaitedWindow[bytes, Sent] = AwaitedWindow(producer.submissions, waits=wait_for_window)

    async def publish(self, *topics: str) -> None:
        """Check early that topics can be sent to. Raises ``TopicNotFound``."""
        await call_in_thread(self._producer.publish, *topics)

    async def send(
        self,
        topic: str,
        data: bytes | str,
        *,
        attribute: str | None = None,
        partition: Partition | None = None,
        key: bytes | str | None = None,
    ) -> Sent:
        """Store one message and return where it is, once the broker has acknowledged it.

        Many sends that are awaited at the same time share blocks. Raises as ``Producer.send``.
        """
        return await (await self.submit(topic, data, attribute=attribute, partition=partition, key=key))

    async def submit(
        self,
        topic: str,
        data: bytes | str,
        *,
        attribute: str | None = None,
        partition: Partition | None = None,
        key: bytes | str | None = None,
    ) -> asyncio.Future[Sent]:
        """Take a message as soon as the window has space, and return a future of where it is stored.

        Raises:
            TopicNotFound, TopicLookupTimeout, MetaqError, ValueError, TypeError, WindowFull: As ``Producer.submit``.
        """
        if not self._producer.knows(topic):
            await self._producer.submissions.lookups.wait_in_loop(topic, self._producer.publish)
        where, frame = self._producer.prepare(topic, data, attribute, partition, key)
        taken = self._window.offer(topic, where, frame, len(frame))
        return taken or await self._window.put(topic, where, frame, len(frame))

    async def send_many(
        self,
        topic: str,
        messages: Iterable[bytes | str | Message],
        *,
        partition: Partition | None = None,
        keys: Sequence[bytes | str | None] | None = None,
    ) -> list[Sent]:
        """Store messages in blocks, and return where each is, in the order given. Raises as ``Producer.send_many``."""
        return await call_in_thread(self._producer.send_many, topic, messages, partition=partition, keys=keys)

    def transaction(self, timeout: int = 60) -> AsyncTransaction:
        """Return a transaction for an ``async with`` block; see ``Producer.transaction``."""
        return AsyncTransaction(self._producer.transaction(timeout))


class AsyncTransaction(EndedByAsyncBlock):
    """``LocalTransaction`` for asyncio: leaving the ``async with`` block commits it, an exception rolls it back."""

    def __init__(self, transaction: LocalTransaction) -> None:
        super().__init__(transaction)
        self._transaction = transaction

    async def send(
        self,
        topic: str,
        data: bytes | str,
        *,
        attribute: str | None = None,
        partition: Partition | None = None,
        key: bytes | str | None = None,
    ) -> Sent:
        """Add a message; see ``LocalTransaction.send``."""
        return await call_in_thread(
            self._transaction.send, topic, data, attribute=attribute, partition=partition, key=key
        )

    async def commit(self) -> None:
        """Make the messages readable."""
        await call_in_thread(self._transaction.commit)

    async def rollback(self) -> None:
        """Drop the messages."""
        await call_in_thread(self._transaction.rollback)


class AsyncXaBranch(EndedByAsyncBlock):
    """``XaBranch`` for asyncio: call ``prepare`` inside the ``async with`` block; without it, leaving rolls back."""

    def __init__(self, branch: XaBranch) -> None:
        super().__init__(branch)
        self._branch = branch
        self.xid = branch.xid

    async def send(
        self, topic: str, data: bytes | str, *, attribute: str | None = None, partition: Partition | None = None
    ) -> Sent:
        """Add a message; see ``XaBranch.send``."""
        return await call_in_thread(self._branch.send, topic, data, attribute=attribute, partition=partition)

    async def prepare(self) -> bool:
        """First phase; return whether there is something to commit."""
        return await call_in_thread(self._branch.prepare)

    async def rollback(self) -> None:
        """Drop the messages."""
        await call_in_thread(self._branch.rollback)
