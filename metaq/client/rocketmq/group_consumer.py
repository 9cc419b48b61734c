"""Consumers of a RocketMQ consumer group, for threads and for asyncio."""

from __future__ import annotations

from metaq.client.groups.async_reader import AsyncGroupReader
from metaq.client.groups.reader import GroupReader
from metaq.client.rocketmq.groups.deliveries import RocketDelivery
from metaq.client.rocketmq.groups.options import RocketOptions
from metaq.client.rocketmq.groups.parking import RocketParkedMessages
from metaq.client.rocketmq.groups.rocketmq_group import RocketCluster, RocketCore


class RocketGroupConsumer(GroupReader[RocketDelivery]):
    """Reads the queues that its group assigns to it. Made by ``RocketMQ.consumer``; joins the group at the first use.

    With ``auto_ack`` a message is settled when the next one (or the next batch) is asked for, else by ``message.ack()``
    or ``commit()``. Leaving the ``with`` block settles the delivered messages, saves positions and leaves the group;
    after an exception, the last delivered messages are not settled and will be delivered again. One thread reads;
    ``stop`` may be called by any. ``assignment`` includes the queues of the group's retry topic.

    Reading raises:
        TopicNotFound: No name server knows one of the topics.
        ConsumerIdInUse: Another consumer with the same id runs in the group.
        CorruptRecord, CodecMissing: A damaged message, with ``on_corrupt="raise"``, or one that cannot be decompressed.
        StoreFailed: A rejected message cannot be parked. It is not settled.
        RequestRefused, AccessDenied: A broker does not compile the SQL expression, or refuses this group.
    """

    def __init__(self, cluster: RocketCluster, options: RocketOptions) -> None:
        self._rocketmq = RocketCore(cluster, options)
        super().__init__(self._rocketmq)

    @property
    def parked(self) -> RocketParkedMessages:
        """The messages that consumers of this group parked on this machine."""
        return self._rocketmq.parked


class AsyncRocketConsumer(AsyncGroupReader[RocketDelivery]):
    """``RocketGroupConsumer`` for ``async with`` and ``async for``. One task reads, in one event loop only.

    ``on_assigned`` and ``on_revoked`` may be functions or coroutine functions.
    """

    def __init__(self, cluster: RocketCluster, options: RocketOptions) -> None:
        self._rocketmq = RocketCore(cluster, options)
        super().__init__(self._rocketmq)

    @property
    def parked(self) -> RocketParkedMessages:
        """The messages that consumers of this group parked on this machine."""
        return self._rocketmq.parked
