"""``RocketGroupConsumer`` for asyncio. The consumer's own client sends and receives pulls in two threads per broker,
and its heartbeats in another; messages are decoded and delivered in the event loop.
"""

from __future__ import annotations

import asyncio

from metaq.client.groups.async_reader import CLOSE_S, AsyncGroupReader
from metaq.client.rocketmq.groups.deliveries import RocketDelivery
from metaq.client.rocketmq.groups.fetchers import PullThreads
from metaq.client.rocketmq.groups.options import RocketOptions
from metaq.client.rocketmq.groups.parking import RocketParkedMessages
from metaq.client.rocketmq.groups.rocketmq_group import RocketCluster, RocketCore
from metaq.client.thread_calls import carry_out


class AsyncRocketConsumer(AsyncGroupReader[RocketDelivery]):
    """``RocketGroupConsumer`` for ``async with`` and ``async for``. One task reads, in one event loop only.

    ``on_assigned`` and ``on_revoked`` may be functions or coroutine functions.
    """

    def __init__(self, cluster: RocketCluster, options: RocketOptions) -> None:
        self._rocketmq = RocketCore(cluster, options)
        super().__init__(self._rocketmq)
        self._threads: PullThreads | None = None

    @property
    def parked(self) -> RocketParkedMessages:
        """The messages that consumers of this group parked on this machine."""
        return self._rocketmq.parked

    def _start_fetching(self, loop: asyncio.AbstractEventLoop) -> None:
        self._threads = self._rocketmq.pull_threads()

    async def _stop_fetching(self) -> None:
        if self._threads is not None:
            await carry_out(self._threads.close, CLOSE_S)
