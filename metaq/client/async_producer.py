"""Producers and transactions for asyncio.

A producer's one sending thread stores the messages; the event loop awaits them.
Thread and loop exchange whole batches, not single messages. No call blocks the loop: a full window is awaited, and the
brokers of a topic are looked up in a thread.
"""

from __future__ import annotations

import asyncio
from typing import Self

from metaq.client.ordered import OrderedProducer
from metaq.client.producer import Producer
from metaq.client.records import Sent
from metaq.client.sending.async_submissions import AwaitedWindow
from metaq.client.shells import ClosedByAsyncBlock, EndedByAsyncBlock
from metaq.client.threads.thread_calls import awaited, open_whole
from metaq.client.transactions import LocalTransaction, XaBranch
from metaq.model import Partition, TopicPartition


class AsyncProducer(ClosedByAsyncBlock[Producer]):
    """``Producer`` for asyncio. Made by ``AsyncMetaQ.producer``; any number of tasks may use it."""

    def __init__(self, producer: Producer, *, wait_for_window: bool) -> None:
        super().__init__(producer)
        self._window: AwaitedWindow[bytes, Sent] = AwaitedWindow(producer.submissions, waits=wait_for_window)

    publish = awaited(Producer.publish)
    send_many = awaited(Producer.send_many)
    flush = awaited(Producer.flush)

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
        if partition is not None and not self._blocking.knows(topic, partition):
            await self._blocking.submissions.lookups.wait_in_loop(topic, self._blocking.renew)
        while not self._blocking.knows(topic):  # a send that fails meanwhile forgets it
            await self._blocking.submissions.lookups.wait_in_loop(topic, self._blocking.publish)
        where, frame = self._blocking.prepare(topic, data, attribute, partition, key)
        taken = self._window.offer(topic, where, frame, len(frame))
        return taken or await self._window.put(topic, where, frame, len(frame))

    def transaction(self, timeout: int = 60) -> AsyncTransaction:
        """Return a transaction for an ``async with`` block; see ``Producer.transaction``."""
        return AsyncTransaction(self._blocking.transaction(timeout))


class AsyncTransaction(EndedByAsyncBlock[LocalTransaction]):
    """``LocalTransaction`` for asyncio: leaving the ``async with`` block commits it, an exception rolls it back."""

    send = awaited(LocalTransaction.send)
    commit = awaited(LocalTransaction.commit)
    rollback = awaited(LocalTransaction.rollback)


class AsyncXaBranch(EndedByAsyncBlock[XaBranch]):
    """``XaBranch`` for asyncio: call ``prepare`` inside the ``async with`` block; without it, leaving rolls back."""

    def __init__(self, branch: XaBranch) -> None:
        super().__init__(branch)
        self.xid = branch.xid

    send = awaited(XaBranch.send)
    prepare = awaited(XaBranch.prepare)
    rollback = awaited(XaBranch.rollback)


class AsyncOrderedProducer(ClosedByAsyncBlock[OrderedProducer]):
    """``OrderedProducer`` for ``async with``. Made by ``AsyncMetaQ.ordered_producer``.

    Messages of one task are stored in the order in which the task awaits them. Threads use the spool file.
    """

    async def __aenter__(self) -> Self:
        await open_whole(self._blocking.__enter__, self._blocking.close)
        return self

    send = awaited(OrderedProducer.send)
    recover = awaited(OrderedProducer.recover)

    @property
    def spooled(self) -> dict[TopicPartition, int]:
        """Number of spooled messages, by partition."""
        return self._blocking.spooled
