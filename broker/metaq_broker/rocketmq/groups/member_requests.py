"""Requests of clients about themselves and their groups: 34, 35, 46, 38, 203, 204, and locks of queues, 41 and 42.

When a consumer group changes, its members are notified (40), unless its settings say otherwise, including the member
that caused the change, before its response. A client that does not read is not notified: it asks for the members every
20 s anyway. Changes of a large group are combined and notified several times a second: otherwise, if thousands of
members join, each would get thousands of notifications.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable
from sys import intern
from typing import Final, cast

from metaq.errors import MetaqError
from metaq.protocols.remoting.bodies.groups import (
    CheckClientRequestBody,
    ClientConnection,
    ConsumeFromWhere,
    ConsumerConnection,
    ConsumerData,
    ConsumerList,
    ConsumeType,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageModel,
    ProducerConnection,
    SubscriptionData,
)
from metaq.protocols.remoting.codes import VERSION_5, ResponseCode
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers import to_request
from metaq.protocols.remoting.headers.clients import (
    CheckClientConfig,
    GetConsumerConnectionList,
    GetConsumerListByGroup,
    GetProducerConnectionList,
    HeartBeat,
    HeartBeatResponse,
    LockBatchMq,
    NotifyConsumerIdsChanged,
    UnlockBatchMq,
    UnregisterClient,
)
from metaq_broker.log.engine.topics import ServedTopic, Topics
from metaq_broker.rocketmq.dispatcher import Dispatcher
from metaq_broker.rocketmq.groups.group_settings import Groups
from metaq_broker.rocketmq.groups.members import ClientIdentity, ConsumerGroup, GroupSubscription, Members
from metaq_broker.rocketmq.groups.queue_locks import QueueLocks
from metaq_broker.rocketmq.pulls.filters import ONLY_TAGS, SQL92, TAG, CheckFilter
from metaq_broker.rocketmq.session import Call, RemotingSession
from metaq_broker.rocketmq.system_topics import retry_topic

_LOG: Final = logging.getLogger(__name__)

KNOWN_KINDS: Final = frozenset({TAG, SQL92})
"""Kinds of filters that RocketMQ's clients know."""


NOTIFIED_AT_ONCE_MAX: Final = 64
"""Limit on members of a group that is notified of each change at once."""

TOGETHER_S: Final = 0.2

LANGUAGE_CHARACTERS_MAX: Final = 32
"""Of the name of a client's language, which is kept with each member."""


class MemberRequests:
    """Handlers. ``check_filter`` checks subscriptions."""

    def __init__(
        self,
        members: Members,
        groups: Groups,
        locks: QueueLocks,
        topics: Topics,
        check_filter: CheckFilter = ONLY_TAGS,
    ) -> None:
        self._members, self._groups, self._locks, self._topics = members, groups, locks, topics
        self._check_filter = check_filter
        self._to_notify: set[str] = set()
        self._members.when_changed(self._changed)

    def mount(self, dispatcher: Dispatcher) -> None:
        """Register the handlers, and remove clients whose connection ends."""
        dispatcher.add([HeartBeat.CODE], self._heartbeat)
        dispatcher.add([UnregisterClient.CODE], self._unregister)
        dispatcher.add([CheckClientConfig.CODE], self._check)
        dispatcher.add([GetConsumerListByGroup.CODE], self._list)
        dispatcher.add([GetConsumerConnectionList.CODE], self._connections)
        dispatcher.add([GetProducerConnectionList.CODE], self._producers)
        dispatcher.add([LockBatchMq.CODE], self._lock)
        dispatcher.add([UnlockBatchMq.CODE], self._unlock)
        dispatcher.when_lost(self._members.connection_lost)

    def expire(self) -> None:
        """Forget silent clients and locks that ran out; to be called every few seconds."""
        self._members.expire()
        self._locks.expire()

    # ---- members

    def _changed(self, group: str, connections: tuple[Hashable, ...]) -> None:
        if len(connections) <= NOTIFIED_AT_ONCE_MAX:
            _notify(group, connections)
        elif group not in self._to_notify:
            self._to_notify.add(group)
            asyncio.get_running_loop().call_later(TOGETHER_S, self._notify_members, group)

    def _notify_members(self, group: str) -> None:
        self._to_notify.discard(group)
        _notify(group, tuple(member.connection for member in self._members.consumers(group)))

    def _heartbeat(self, call: Call) -> RemotingCommand | None:
        command, data = call.request, HeartbeatData.from_json(call.request.body)
        session, is_v5 = call.session, call.request.version >= VERSION_5
        language = intern(command.language[:LANGUAGE_CHARACTERS_MAX])
        who = ClientIdentity(session, data.client_id, session.client.peer, language, command.version)
        groups = [_consumer_group(each) for each in data.consumer_data_set]
        producers = [each.group_name for each in data.producer_data_set]
        self._members.check(who, groups, producers)
        changed = False
        with self._topics.together():  # each new group has a topic for retries
            for group in groups:
                changed |= self._consumer_seen(who, group, without_subscriptions=bool(data.without_sub))
        for name in producers:
            self._members.producer_seen(who, name)
        said = HeartBeatResponse(is_support_heart_beat_v2=False, is_sub_change=changed)
        response = command.reply(ext=said.ext() if is_v5 else None)
        if not groups:
            return response
        self._topics.announce(lambda: call.answer(response))  # a consumer asks for the route of its retry topic at once
        return None

    def _consumer_seen(self, who: ClientIdentity, group: ConsumerGroup, *, without_subscriptions: bool) -> bool:
        if without_subscriptions and self._members.touch_consumer(who, group.name):
            return False
        settings = self._groups.find(group.name)
        if settings is not None and self._topics.settings(retry_topic(group.name)) is None:
            self._topics.create(retry_topic(group.name), ServedTopic(settings.retry_queues, settings.retry_queues))
        return self._members.consumer_seen(who, group, notify=settings is None or settings.notify_changes)

    def _unregister(self, call: Call) -> RemotingCommand:
        asked = UnregisterClient.from_ext(call.request.ext)
        if asked.producer_group:
            self._members.producer_left(call.session, asked.producer_group)
        if asked.consumer_group:
            settings = self._groups.get(asked.consumer_group)
            notify = settings is None or settings.notify_changes
            self._members.consumer_left(call.session, asked.consumer_group, notify=notify)
        return call.request.reply()

    def _check(self, call: Call) -> RemotingCommand:
        if not call.request.body and call.request.version >= VERSION_5:
            return call.request.reply()
        subscription = CheckClientRequestBody.from_json(call.request.body).subscription_data
        fault = self._check_filter(subscription.expression_type or TAG, subscription.sub_string)
        if fault is None:
            return call.request.reply()
        kind = subscription.expression_type
        is_wrong = kind not in KNOWN_KINDS or self._check_filter(kind, "TRUE") is None
        code = ResponseCode.SUBSCRIPTION_PARSE_FAILED if is_wrong else ResponseCode.SYSTEM_ERROR
        return call.request.reply(code, remark=fault)

    def _list(self, call: Call) -> RemotingCommand:
        group = GetConsumerListByGroup.from_ext(call.request.ext).consumer_group
        ids = self._members.client_ids(group)
        if not ids:
            return call.request.reply(ResponseCode.SYSTEM_ERROR, remark=f"no consumer for this group, {group}")
        return call.request.reply(body=ConsumerList(consumer_id_list=tuple(ids)).to_json())

    def _connections(self, call: Call) -> RemotingCommand:
        name = GetConsumerConnectionList.from_ext(call.request.ext).consumer_group
        group = self._members.consumer_group(name)
        if group is None:
            remark = f"the consumer group[{name}] not online"
            return call.request.reply(ResponseCode.CONSUMER_NOT_ONLINE, remark=remark)
        body = ConsumerConnection(
            connection_set=tuple(map(_connection, self._members.consumers(name))),
            subscription_table={each.topic: _subscription_data(each) for each in group.subscriptions},
            consume_type=ConsumeType[group.consume_type],
            message_model=MessageModel[group.message_model],
            consume_from_where=ConsumeFromWhere[group.consume_from],
        )
        return call.request.reply(body=body.to_json())

    def _producers(self, call: Call) -> RemotingCommand:
        group = GetProducerConnectionList.from_ext(call.request.ext).producer_group
        found = self._members.producers(group)
        if not found:
            remark = f"the producer group[{group}] not exist"
            return call.request.reply(ResponseCode.SYSTEM_ERROR, remark=remark)
        return call.request.reply(body=ProducerConnection(connection_set=tuple(map(_connection, found))).to_json())

    # ---- locks of queues

    def _lock(self, call: Call) -> RemotingCommand:
        asked = LockBatchRequestBody.from_json(call.request.body)
        wanted = {(each.topic, each.queue_id): each for each in asked.mq_set}
        locked = []
        if self._may_lock(asked):
            locked = self._locks.lock(asked.consumer_group, asked.client_id, wanted)
        body = LockBatchResponseBody(locked=tuple(wanted[queue] for queue in locked))
        return call.request.reply(body=body.to_json())

    def _may_lock(self, asked: LockBatchRequestBody) -> bool:
        """Members may lock; and any client of a group without known members, as after a restart: see ``queue_locks``.

        Java clients before 4.5 lock over another connection than their heartbeats, to the VIP port.
        """
        group = asked.consumer_group
        if self._members.subscriptions(group) is None:
            return True
        return self._members.is_member(group, asked.client_id)

    def _unlock(self, call: Call) -> RemotingCommand:
        asked = LockBatchRequestBody.from_json(call.request.body)
        if self._may_lock(asked):
            queues = [(each.topic, each.queue_id) for each in asked.mq_set]
            self._locks.unlock(asked.consumer_group, asked.client_id, queues)
        return call.request.reply()


def _notify(group: str, connections: tuple[Hashable, ...]) -> None:
    """Notify the members of a group that it changed."""
    command = to_request(NotifyConsumerIdsChanged(consumer_group=group), oneway=True)
    for session in cast("tuple[RemotingSession, ...]", connections):
        try:
            session.oneway(command)
        except MetaqError as error:  # it is disconnected, or does not read
            fields = {"peer": session.client.peer, "group": group, "reason": str(error)}
            _LOG.info("a member was not notified that its group changed", extra={"fields": fields})


def _consumer_group(data: ConsumerData) -> ConsumerGroup:
    subscriptions = tuple(
        GroupSubscription(
            each.topic, each.sub_string, each.expression_type, each.sub_version, each.tags_set, each.code_set
        )
        for each in data.subscription_data_set
    )
    kinds = data.consume_type.name, data.message_model.name, data.consume_from_where.name
    return ConsumerGroup(data.group_name, subscriptions, *kinds)


def _subscription_data(subscription: GroupSubscription) -> SubscriptionData:
    return SubscriptionData(
        topic=subscription.topic,
        sub_string=subscription.expression,
        tags_set=subscription.tags,
        code_set=subscription.tag_hashes,
        sub_version=subscription.version,
        expression_type=subscription.kind,
    )


def _connection(identity: ClientIdentity) -> ClientConnection:
    return ClientConnection(
        client_id=identity.client_id,
        client_addr=identity.address,
        language=identity.language,
        version=identity.version,
    )
