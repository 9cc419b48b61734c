"""Administrative requests about groups: settings (200, 225, 201, 207, 352), lag (208), offsets (43, 45), readers (300).

A change is answered when it is durable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from metaq.protocols.remoting.bodies.administration import SubscriptionGroupList
from metaq.protocols.remoting.bodies.groups import (
    GroupList,
    MessageQueue,
    SubscriptionGroupConfig,
    SubscriptionGroups,
)
from metaq.protocols.remoting.bodies.offsets import ConsumeOffset, ConsumerOffsets, ConsumeStats, DelayOffsets
from metaq.protocols.remoting.bodies.registration import DataVersion
from metaq.protocols.remoting.codes import ResponseCode
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers.administration import (
    DeleteSubscriptionGroup,
    GetAllSubscriptionGroupConfig,
    GetConsumeStats,
    GetSubscriptionGroupConfig,
    QueryTopicConsumeByWho,
    UpdateAndCreateSubscriptionGroup,
    UpdateAndCreateSubscriptionGroupList,
)
from metaq.protocols.remoting.headers.offsets import GetAllConsumerOffset, GetAllDelayOffset
from metaq_broker.log.engine.topics import Topics
from metaq_broker.rocketmq.dispatcher import Dispatcher
from metaq_broker.rocketmq.groups.group_offsets import GroupOffsets
from metaq_broker.rocketmq.groups.group_settings import Groups, GroupSettings
from metaq_broker.rocketmq.groups.members import Members
from metaq_broker.rocketmq.groups.offset_requests import QueueOffsets
from metaq_broker.rocketmq.session import Call
from metaq_broker.rocketmq.when_kept import answer_when_kept

DelayPositions = Callable[[], Mapping[int, int]]
"""Delay level -> queue offset up to which its messages have been delivered."""

RETRY_QUEUES_MAX: Final = 64
"""Queues of a group's retry topic."""


def no_delays() -> Mapping[int, int]:
    """``DelayPositions`` of a broker that delivers no delayed messages."""
    return {}


class GroupAdministrationRequests:
    def __init__(
        self,
        broker_name: str,
        groups: Groups,
        offsets: GroupOffsets,
        members: Members,
        topics: Topics,
        store: QueueOffsets,
        delays: DelayPositions = no_delays,
    ) -> None:
        self._broker_name = broker_name
        self._groups, self._offsets, self._members = groups, offsets, members
        self._topics, self._store, self._delays = topics, store, delays

    def mount(self, dispatcher: Dispatcher) -> None:
        """Register the handlers."""
        dispatcher.add([UpdateAndCreateSubscriptionGroup.CODE], self._update)
        dispatcher.add([UpdateAndCreateSubscriptionGroupList.CODE], self._update_many)
        dispatcher.add([GetAllSubscriptionGroupConfig.CODE], self._all)
        dispatcher.add([GetSubscriptionGroupConfig.CODE], self._one)
        dispatcher.add([DeleteSubscriptionGroup.CODE], self._delete)
        dispatcher.add([GetConsumeStats.CODE], self._consume_stats)
        dispatcher.add([GetAllConsumerOffset.CODE], self._all_offsets)
        dispatcher.add([GetAllDelayOffset.CODE], self._delay_offsets)
        dispatcher.add([QueryTopicConsumeByWho.CODE], self._readers)

    # ---- for other requests

    def names(self) -> list[str]:
        """Return the groups with settings, sorted."""
        return sorted(self._groups.all())

    def topics_read_by(self, group: str) -> list[str]:
        """Return the topics for which a group has offsets, except topics that it does not read now."""
        subscriptions = self._members.subscriptions(group)
        return [each for each in self._offsets.topics_of(group) if not subscriptions or each in subscriptions]

    def queues(self, group: str, topic: str) -> dict[MessageQueue, ConsumeOffset]:
        """Return a group's offsets in the queues of a topic."""
        settings = self._topics.settings(topic)
        count = 0 if settings is None else settings.read_queues
        return {
            MessageQueue(topic=topic, broker_name=self._broker_name, queue_id=queue): self._queue(group, topic, queue)
            for queue in range(count)
        }

    # ---- settings

    def _update(self, call: Call) -> RemotingCommand | None:
        config = SubscriptionGroupConfig.from_json(call.request.body)
        if (fault := _fault(config)) is not None:
            return call.request.reply(ResponseCode.SYSTEM_ERROR, remark=fault)
        self._groups.put(config.group_name, _settings(config), answer_when_kept(call))
        return None

    def _update_many(self, call: Call) -> RemotingCommand | None:
        """Create or change groups: all, or with a wrong one among them none."""
        configs = SubscriptionGroupList.from_json(call.request.body).group_config_list
        for config in configs:
            if (fault := _fault(config)) is not None:
                remark = f"group {config.group_name}: {fault}; nothing was changed"
                return call.request.reply(ResponseCode.SYSTEM_ERROR, remark=remark)
        if not configs:
            return call.request.reply()
        groups = {config.group_name: _settings(config) for config in configs}
        self._groups.check_all(groups)
        *others, last = groups.items()
        for group, settings in others:
            self._groups.put(group, settings)
        self._groups.put(*last, answer_when_kept(call))
        return None

    def _all(self, call: Call) -> RemotingCommand:
        table = {name: _config(name, each) for name, each in sorted(self._groups.all().items())}
        version = DataVersion(counter=self._groups.changes)
        body = SubscriptionGroups(subscription_group_table=table, data_version=version)
        return call.request.reply(body=body.to_json())

    def _one(self, call: Call) -> RemotingCommand:
        group = GetSubscriptionGroupConfig.from_ext(call.request.ext).group
        settings = self._groups.get(group)
        if settings is None:
            remark = f"subscription group not exist, {group}"
            return call.request.reply(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark=remark)
        return call.request.reply(body=_config(group, settings).to_json())

    def _delete(self, call: Call) -> None:
        asked = DeleteSubscriptionGroup.from_ext(call.request.ext)
        if asked.clean_offset:
            self._offsets.forget_group(asked.group_name)
        self._groups.delete(asked.group_name, answer_when_kept(call))

    # ---- offsets

    def _consume_stats(self, call: Call) -> RemotingCommand:
        asked = GetConsumeStats.from_ext(call.request.ext)
        group = asked.consumer_group
        topics = [asked.topic] if asked.topic else self._offsets.topics_of(group)
        subscriptions = self._members.subscriptions(group)
        table: dict[MessageQueue, ConsumeOffset] = {}
        for topic in topics:
            if subscriptions and topic not in subscriptions:
                continue  # the group read it once, and does not now
            table |= self.queues(group, topic)
        return call.request.reply(body=ConsumeStats(offset_table=table).to_json(bare_number_keys=True))

    def _queue(self, group: str, topic: str, queue: int) -> ConsumeOffset:
        committed = max(0, self._offsets.get(topic, group, queue) or 0)
        last_ms = self._store.store_time(topic, queue, committed - 1) if committed else None
        return ConsumeOffset(
            broker_offset=max(0, self._store.max_offset(topic, queue)),
            consumer_offset=committed,
            last_timestamp=last_ms or 0,
        )

    def _all_offsets(self, call: Call) -> RemotingCommand:
        table = {f"{topic}@{group}": dict(queues) for (topic, group), queues in self._offsets.all().items()}
        return call.request.reply(body=ConsumerOffsets(offset_table=table).to_json(bare_number_keys=True))

    def _delay_offsets(self, call: Call) -> RemotingCommand:
        body = DelayOffsets(offset_table={level: offset for level, offset in self._delays().items() if offset})
        return call.request.reply(body=body.to_json(bare_number_keys=True))

    def _readers(self, call: Call) -> RemotingCommand:
        topic = QueryTopicConsumeByWho.from_ext(call.request.ext).topic
        groups = {*self._members.groups_subscribed_to(topic), *self._offsets.groups_of(topic)}
        return call.request.reply(body=GroupList(group_list=tuple(sorted(groups))).to_json())


def _fault(config: SubscriptionGroupConfig) -> str | None:
    """Return why the settings of a group are refused."""
    if not config.group_name:
        return "the name of a group is empty"
    if not 0 <= config.retry_queue_nums <= RETRY_QUEUES_MAX:
        return f"retryQueueNums {config.retry_queue_nums}; expected 0 to {RETRY_QUEUES_MAX}"
    return None


def _settings(config: SubscriptionGroupConfig) -> GroupSettings:
    return GroupSettings(
        consume_enable=config.consume_enable,
        consume_from_min=config.consume_from_min_enable,
        consume_broadcast=config.consume_broadcast_enable,
        retry_queues=config.retry_queue_nums,
        retry_max=config.retry_max_times,
        broker_id=config.broker_id,
        slow_broker_id=config.which_broker_when_consume_slowly,
        notify_changes=config.notify_consumer_ids_changed_enable,
    )


def _config(group: str, settings: GroupSettings) -> SubscriptionGroupConfig:
    return SubscriptionGroupConfig(
        group_name=group,
        consume_enable=settings.consume_enable,
        consume_from_min_enable=settings.consume_from_min,
        consume_broadcast_enable=settings.consume_broadcast,
        retry_queue_nums=settings.retry_queues,
        retry_max_times=settings.retry_max,
        broker_id=settings.broker_id,
        which_broker_when_consume_slowly=settings.slow_broker_id,
        notify_consumer_ids_changed_enable=settings.notify_changes,
    )
