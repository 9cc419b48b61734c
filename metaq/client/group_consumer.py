"""Consumers of a MetaQ consumer group, for threads and for asyncio."""

from __future__ import annotations

from metaq.client.groups.async_reader import AsyncGroupReader
from metaq.client.groups.deliveries import Delivery
from metaq.client.groups.metaq_group import MetaqCluster, MetaqCore
from metaq.client.groups.options import ConsumerOptions
from metaq.client.groups.parking import ParkedMessages
from metaq.client.groups.reader import GroupReader


class GroupConsumer(GroupReader[Delivery]):
    """Reads the partitions that its group assigns to it. Made by ``MetaQ.consumer``; joins the group at the first use.

    With ``auto_ack`` a message is settled when the next one (or the next batch) is asked for, else by ``message.ack()``
    or ``commit()``. Leaving the ``with`` block settles the delivered messages, saves positions and leaves the group;
    after an exception, the last delivered messages are not settled and will be delivered again. One thread reads;
    ``stop`` may be called by any.

    Reading raises:
        ConsumerIdInUse: Another consumer with the same id runs in the group.
        CorruptFrame: A damaged message, with ``on_corrupt="raise"``.
        CodecMissing: A RocketMQ client compressed the message, and the package for that is not installed.
        StoreFailed: A rejected message cannot be parked. It is not settled.
        ZooKeeperRefused: ZooKeeper forbids something, or its tree cannot be read.
        ValueError, ExtensionMissing: ``start`` cannot be applied.
    """

    def __init__(self, cluster: MetaqCluster, options: ConsumerOptions) -> None:
        self._metaq = MetaqCore(cluster, options)
        super().__init__(self._metaq)

    @property
    def parked(self) -> ParkedMessages:
        """The messages that consumers of this group parked on this machine."""
        return self._metaq.parked


class AsyncGroupConsumer(AsyncGroupReader[Delivery]):
    """``GroupConsumer`` for ``async with`` and ``async for``. One task reads, in one event loop only.

    ``on_assigned`` and ``on_revoked`` may be functions or coroutine functions.
    """

    def __init__(self, cluster: MetaqCluster, options: ConsumerOptions) -> None:
        self._metaq = MetaqCore(cluster, options)
        super().__init__(self._metaq)

    @property
    def parked(self) -> ParkedMessages:
        """The messages that consumers of this group parked on this machine."""
        return self._metaq.parked
