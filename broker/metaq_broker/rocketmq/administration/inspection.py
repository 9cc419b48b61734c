"""Questions of administrators that only read, or remove what is not needed: 306, 315, 316, 317, 321, 328, 329, 907.

A queue's index goes with its segments, and a topic without settings has no messages: there is never anything for 306
and 316 to remove.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Final

from metaq.errors import MetaqError
from metaq.formats.rocketmq.records import read_records
from metaq.formats.rocketmq.tags import tag_hash
from metaq.formats.stored_records import Wanted
from metaq.model import Address
from metaq.protocols.remoting.bodies.administration import (
    ConsumeStatsList,
    HAConnection,
    HARuntimeInfo,
    ProducerInfo,
    ProducerTableInfo,
    QueueEntries,
    QueueEntry,
)
from metaq.protocols.remoting.bodies.groups import SubscriptionData
from metaq.protocols.remoting.bodies.offsets import ConsumeStats
from metaq.protocols.remoting.codes import ResponseCode
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers.administration import (
    CLEAN_UNUSED_TOPIC,
    CleanExpiredConsumeQueue,
    DeleteExpiredCommitLog,
    GetAllProducerInfo,
    GetBrokerConsumeStats,
    GetBrokerHaStatus,
    QueryConsumeQueue,
    ViewBrokerStatsData,
)
from metaq_broker.log.engine.topics import Topics
from metaq_broker.rocketmq.administration.activity import Activity
from metaq_broker.rocketmq.administration.group_administration import GroupAdministrationRequests
from metaq_broker.rocketmq.dispatcher import Dispatcher
from metaq_broker.rocketmq.groups.members import Members
from metaq_broker.rocketmq.messages.message_store import MessageStore, ReadRecords
from metaq_broker.rocketmq.session import Call

ENTRIES_MAX: Final = 1024
"""Limit on entries of a queue in one response."""

READ_BYTES: Final = 256 << 10
"""Limit on bytes of messages that are read at once for entries."""

ENTRIES_BYTES_MAX: Final = 16 << 20
"""Approximate limit on bytes of messages that are read for one response."""


@dataclass(frozen=True, slots=True)
class Inspected:
    """What the requests ask about. ``address`` is the broker's for clients, ``log_end`` the bytes of all partitions.

    ``slave`` returns the address of the slave of a synchronous pair, and whether it is in sync.
    """

    address: str
    activity: Activity
    log_end: Callable[[], int]
    slave: Callable[[], tuple[Address, bool] | None]
    retire: Callable[[], Awaitable[object]]
    now_ms: Callable[[], int]


class InspectionRequests:
    def __init__(
        self,
        inspected: Inspected,
        groups: GroupAdministrationRequests,
        members: Members,
        topics: Topics,
        store: MessageStore,
    ) -> None:
        self._inspected, self._groups, self._members = inspected, groups, members
        self._topics, self._store = topics, store
        self._tasks: set[asyncio.Task[None]] = set()

    def mount(self, dispatcher: Dispatcher) -> None:
        """Register the handlers."""
        dispatcher.add([ViewBrokerStatsData.CODE], self._stats)
        dispatcher.add([GetBrokerConsumeStats.CODE], self._all_consume_stats)
        dispatcher.add([QueryConsumeQueue.CODE], self._queue_entries)
        dispatcher.add([GetAllProducerInfo.CODE], self._producers)
        dispatcher.add([GetBrokerHaStatus.CODE], self._copies)
        dispatcher.add([CleanExpiredConsumeQueue.CODE, CLEAN_UNUSED_TOPIC], self._nothing_to_clean)
        dispatcher.add([DeleteExpiredCommitLog.CODE], self._retire)

    # ---- figures

    def _stats(self, call: Call) -> RemotingCommand:
        asked = ViewBrokerStatsData.from_ext(call.request.ext)
        found = self._inspected.activity.stats(asked.stats_name, asked.stats_key)
        if found is None:
            remark = f"The stats <{asked.stats_name}> <{asked.stats_key}> not exist"
            return call.request.reply(ResponseCode.SYSTEM_ERROR, remark=remark)
        return call.request.reply(body=found.to_json())

    def _all_consume_stats(self, call: Call) -> RemotingCommand:
        ordered_only = bool(GetBrokerConsumeStats.from_ext(call.request.ext).is_order)
        listed = [{group: self._of_group(group, ordered_only)} for group in self._groups.names()]
        behind = sum(
            max(0, queue.broker_offset - queue.consumer_offset)
            for row in listed
            for each in row.values()
            for stats in each
            for queue in stats.offset_table.values()
        )
        body = ConsumeStatsList(
            broker_addr=self._inspected.address, consume_stats_list=tuple(listed), total_diff=behind
        )
        return call.request.reply(body=body.to_json(bare_number_keys=True))

    def _of_group(self, group: str, ordered_only: bool) -> tuple[ConsumeStats, ...]:
        """Return the figures of a group, one for each topic that it reads."""
        found = []
        for topic in self._groups.topics_read_by(group):
            settings = self._topics.settings(topic)
            if settings is not None and (settings.order or not ordered_only):
                rate = self._inspected.activity.rate("GROUP_GET_NUMS", f"{topic}@{group}")
                found.append(ConsumeStats(offset_table=self._groups.queues(group, topic), consume_tps=rate))
        return tuple(found)

    def _producers(self, call: Call) -> RemotingCommand:
        now_ms = self._inspected.now_ms()
        data = {
            group: tuple(
                ProducerInfo(
                    client_id=each.client_id,
                    remote_ip=each.address,
                    language=each.language,
                    version=each.version,
                    last_update_timestamp=now_ms - round(silent_s * 1000),
                )
                for each, silent_s in self._members.producers_seen(group)
            )
            for group in self._members.producer_groups()
        }
        return call.request.reply(body=ProducerTableInfo(data=data).to_json())

    def _copies(self, call: Call) -> RemotingCommand:
        slave, end = self._inspected.slave(), self._inspected.log_end()
        connections = () if slave is None else (_connection(*slave, end),)
        body = HARuntimeInfo(
            master=True,
            master_commit_log_max_offset=end,
            in_sync_slave_nums=sum(each.in_sync for each in connections),
            ha_connection_info=connections,
        )
        return call.request.reply(body=body.to_json())

    # ---- a queue

    def _queue_entries(self, call: Call) -> RemotingCommand:
        asked = QueryConsumeQueue.from_ext(call.request.ext)
        settings = self._topics.settings(asked.topic)
        if settings is None or not 0 <= asked.queue_id < settings.queues:
            remark = f"{asked.queue_id}@{asked.topic} is not exist!"
            return call.request.reply(ResponseCode.SYSTEM_ERROR, remark=remark)
        first, end = (find(asked.topic, asked.queue_id) for find in (self._store.min_offset, self._store.max_offset))
        subscription, fault = self._subscription(asked)
        count = min(max(0, asked.count), ENTRIES_MAX)
        body = QueueEntries(
            queue_data=tuple(self._entries(asked.topic, asked.queue_id, max(asked.index, first), count)),
            min_queue_index=first,
            max_queue_index=end,
            subscription_data=subscription,
            filter_data=fault,
        )
        return call.request.reply(body=body.to_json())

    def _subscription(self, asked: QueryConsumeQueue) -> tuple[SubscriptionData | None, str | None]:
        """Return the subscription of the group that is named, or why there is none."""
        if not asked.consumer_group:
            return None, None
        found = (self._members.subscriptions(asked.consumer_group) or {}).get(asked.topic)
        if found is None:
            return None, f"{asked.consumer_group}@{asked.topic} is not online!"
        data = SubscriptionData(
            topic=found.topic,
            sub_string=found.expression,
            tags_set=found.tags,
            code_set=found.tag_hashes,
            sub_version=found.version,
            expression_type=found.kind,
        )
        return data, "null"

    def _entries(self, topic: str, queue: int, offset: int, count: int) -> Iterator[QueueEntry]:
        left_bytes = ENTRIES_BYTES_MAX
        while count > 0 and left_bytes > 0:
            messages_max = min(count, 64)
            found = self._store.read(topic, queue, offset, Wanted(messages_max, READ_BYTES, messages_max))
            if not isinstance(found, ReadRecords) or not found.records:
                return
            for record in read_records(found.records):
                tag = record.property_map().get("TAGS")
                yield QueueEntry(
                    physic_offset=record.physical_offset,
                    physic_size=record.size,
                    tags_code=tag_hash(tag) if tag else 0,
                )
            offset, count, left_bytes = found.next_offset, count - found.messages, left_bytes - len(found.records)

    # ---- removing

    def _nothing_to_clean(self, call: Call) -> RemotingCommand:
        return call.request.reply()

    def _retire(self, call: Call) -> None:
        task = asyncio.get_running_loop().create_task(self._retired(call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _retired(self, call: Call) -> None:
        try:
            await self._inspected.retire()
        except MetaqError as error:
            call.answer(call.request.reply(ResponseCode.SYSTEM_ERROR, remark=str(error)))
        else:
            call.answer(call.request.reply())


def _connection(slave: Address, in_sync: bool, end: int) -> HAConnection:
    """Return the entry of a slave; how far one is that is not in sync is not known."""
    acknowledged = end if in_sync else 0
    return HAConnection(addr=str(slave), slave_ack_offset=acknowledged, diff=end - acknowledged, in_sync=in_sync)
