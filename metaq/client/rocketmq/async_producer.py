"""``RocketProducer`` and ``TransactionalProducer`` for asyncio.

The producer's one sending thread stores the messages; the event loop awaits them. No call blocks the loop.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from typing import Final, Self, Unpack, cast

from metaq.backends.rocketmq.body_limits import BODY_BYTES_MAX
from metaq.backends.rocketmq.errors import NoReply
from metaq.backends.rocketmq.half_messages import Outcome
from metaq.client.rocketmq.check_backs import Check
from metaq.client.rocketmq.producer import MessageOptions, RocketProducer, message_of
from metaq.client.rocketmq.records import RocketMessage, RocketReceived, RocketSent
from metaq.client.rocketmq.requests import REPLY_S, RocketReply
from metaq.client.rocketmq.sending import Row
from metaq.client.rocketmq.transactions import RocketTransaction, State, TransactionalProducer
from metaq.client.sending.async_submissions import AwaitedWindow
from metaq.client.shells import ClosedByAsyncBlock, EndedByAsyncBlock
from metaq.client.threads.thread_calls import awaited, call_in_thread
from metaq.model import Partition
from metaq.net.clock import SYSTEM_CLOCK

BYTES_OF_CHARACTER_MAX: Final = 4

AsyncCheck = Check | Callable[[RocketReceived], Coroutine[object, object, Outcome]]
"""A function, which runs in a thread, or a coroutine function, which runs in the loop."""


class AsyncRocketProducer(ClosedByAsyncBlock[RocketProducer]):
    """``RocketProducer`` for asyncio. Made by ``AsyncRocketMQ.producer``; any number of tasks may use it."""

    def __init__(self, producer: RocketProducer, *, wait_for_window: bool) -> None:
        super().__init__(producer)
        self._window: AwaitedWindow[Row, RocketSent] = AwaitedWindow(producer.submissions, waits=wait_for_window)

    def __repr__(self) -> str:
        return f"Async{self._blocking!r}"

    @property
    def group(self) -> str:
        """The producer group."""
        return self._blocking.group

    publish = awaited(RocketProducer.publish)
    send_many = awaited(RocketProducer.send_many)
    send_oneway = awaited(RocketProducer.send_oneway)
    recall = awaited(RocketProducer.recall)
    reply = awaited(RocketProducer.reply)
    flush = awaited(RocketProducer.flush)

    async def send(
        self,
        topic: str,
        data: bytes | str,
        *,
        partition: Partition | None = None,
        key: bytes | str | None = None,
        **options: Unpack[MessageOptions],
    ) -> RocketSent:
        """Store one message and return where it is, once the broker has acknowledged it.

        Many sends that are awaited at the same time share batches. Raises as ``RocketProducer.send``.
        """
        return await (await self.submit(topic, data, partition=partition, key=key, **options))

    async def submit(
        self,
        topic: str,
        data: bytes | str,
        *,
        partition: Partition | None = None,
        key: bytes | str | None = None,
        **options: Unpack[MessageOptions],
    ) -> asyncio.Future[RocketSent]:
        """Take a message as soon as the window has space, and return a future of where it is stored.

        Raises as ``RocketProducer.submit``.
        """
        if not self._blocking.knows(topic):
            await self._blocking.submissions.lookups.wait_in_loop(topic, self._blocking.publish)
        message = message_of(data, **options)
        row = await self._prepared(topic, message, partition, key)
        taken = self._window.offer(topic, None, row, len(row.body))
        return taken or await self._window.put(topic, None, row, len(row.body))

    async def _prepared(
        self, topic: str, message: RocketMessage, partition: Partition | None, key: bytes | str | None
    ) -> Row:
        is_short = len(message.data) <= BODY_BYTES_MAX // BYTES_OF_CHARACTER_MAX
        if is_short and not message.is_timed and self._blocking.knows(topic, partition):
            return self._blocking.prepare(topic, message, partition, key)
        return await call_in_thread(self._blocking.prepare, topic, message, partition, key)  # may ask servers

    async def request(
        self,
        topic: str,
        data: bytes | str,
        *,
        timeout: float = REPLY_S,
        partition: Partition | None = None,
        key: bytes | str | None = None,
        **options: Unpack[MessageOptions],
    ) -> RocketReply:
        """Store a message, and wait for the reply of the consumer that gets it. Raises as ``RocketProducer.request``.

        No thread waits for the reply.
        """
        message = message_of(data, **options)
        sent = await call_in_thread(self._blocking.begin_request, topic, message, timeout, partition, key)
        try:
            async with asyncio.timeout(max(0.0, sent.deadline_s - SYSTEM_CLOCK.monotonic())):
                return await asyncio.wrap_future(sent.future)
        except TimeoutError:
            raise NoReply(topic, sent.message_id, timeout) from None
        finally:
            self._blocking.end_request(sent)


class AsyncTransactionalProducer(AsyncRocketProducer):
    """``TransactionalProducer`` for ``async with``. Made by ``AsyncRocketMQ.transactional_producer``.

    A ``check`` that is a coroutine function runs in the loop that entered the block.
    """

    def __init__(self, make: Callable[[Check], TransactionalProducer], check: AsyncCheck, *, waits: bool) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._transactional = make(self._in_loop(check))
        super().__init__(self._transactional, wait_for_window=waits)

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._transactional.start()
        return self

    @property
    def reached(self) -> frozenset[str]:
        """Names of the brokers that know this producer."""
        return self._transactional.reached

    def transaction(self, ask_after: int | None = None) -> AsyncRocketTransaction:
        """Return a transaction for an ``async with`` block; see ``TransactionalProducer.transaction``."""
        if self._loop is None:
            raise ValueError("a transactional producer can only be used inside its async with block")
        return AsyncRocketTransaction(self._transactional.transaction(ask_after))

    def _in_loop(self, check: AsyncCheck) -> Check:
        if not inspect.iscoroutinefunction(check):
            return cast("Check", check)
        ask = cast("Callable[[RocketReceived], Coroutine[object, object, Outcome]]", check)

        def wait_for(message: RocketReceived) -> Outcome:
            if self._loop is None or self._loop.is_closed():
                return "unknown"
            return asyncio.run_coroutine_threadsafe(ask(message), self._loop).result()

        return wait_for


class AsyncRocketTransaction(EndedByAsyncBlock[RocketTransaction]):
    """``RocketTransaction`` for asyncio: leaving the ``async with`` block commits it, an exception rolls it back.

    Cancelling the task leaves it open: the broker asks ``check``.
    """

    def __repr__(self) -> str:
        return f"Async{self._blocking!r}"

    @property
    def state(self) -> State:
        """The state of the transaction."""
        return self._blocking.state

    send = awaited(RocketTransaction.send)
    commit = awaited(RocketTransaction.commit)
    rollback = awaited(RocketTransaction.rollback)

    def leave(self) -> None:
        """End the transaction without a decision: the broker asks ``check``."""
        self._blocking.leave()
