"""Requests of a member of a consumer group to brokers, over the client that also sends its pulls.

Brokers identify a member by the connections of its heartbeats, and notify it there when the members change. So all of a
member's requests use one ``RemotingClient``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, Literal

from metaq.backends.rocketmq.answers import Answers
from metaq.backends.rocketmq.names import with_namespace, without_namespace
from metaq.backends.rocketmq.reads.pulls import Subscription
from metaq.backends.rocketmq.routes import Routes
from metaq.errors import MetaqError
from metaq.model import Address, Partition, TopicPartition
from metaq.net.clock import wall_clock_ms
from metaq.net.remoting_client import RemotingClient
from metaq.protocols.remoting.bodies.groups import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumerList,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageModel,
    MessageQueue,
    SubscriptionData,
)
from metaq.protocols.remoting.bodies.offsets import ResetOffsets
from metaq.protocols.remoting.codes import ResponseCode
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers import to_request
from metaq.protocols.remoting.headers.clients import (
    GetConsumerListByGroup,
    HeartBeat,
    LockBatchMq,
    NotifyConsumerIdsChanged,
    UnlockBatchMq,
    UnregisterClient,
)
from metaq.protocols.remoting.headers.offsets import RESET_CONSUMER_CLIENT_OFFSET
from metaq.protocols.remoting.headers.sends import ConsumerSendMsgBack

ANSWER_S: Final = 3.0
"""Timeout of a request."""

BeginsAt = Literal["earliest", "latest", "time"]
"""Where a group without offsets begins, as brokers display it. They do not use it."""

_BEGINS: Final = {
    "earliest": ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    "latest": ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
    "time": ConsumeFromWhere.CONSUME_FROM_TIMESTAMP,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A member of ``group``, as it describes itself. ``subscriptions``: topics, without their namespace."""

    group: str
    client_id: str
    subscriptions: Sequence[tuple[str, Subscription]]
    broadcast: bool = False
    begins_at: BeginsAt = "earliest"


class GroupRequests:
    """The requests of ``member``; names are given and returned without the namespace of ``routes``. Thread-safe.

    All methods raise ``RequestRefused``, ``AccessDenied``, ``ConnectionFailed``, ``DeadlineExceeded`` and
    ``ProtocolError``.
    """

    def __init__(self, client: RemotingClient, routes: Routes, member: Member) -> None:
        self._client, self._routes, self._id = client, routes, member.client_id
        self.group = with_namespace(member.group, routes.namespace)
        """The full name of the group."""
        model = MessageModel.BROADCASTING if member.broadcast else MessageModel.CLUSTERING
        version = wall_clock_ms()  # brokers use the newest of a client
        data = ConsumerData(
            group_name=self.group,
            message_model=model,
            consume_from_where=_BEGINS[member.begins_at],
            subscription_data_set=tuple(
                _subscription(with_namespace(topic, routes.namespace), wanted, version)
                for topic, wanted in member.subscriptions
            ),
        )
        self._heartbeat = HeartbeatData(client_id=member.client_id, consumer_data_set=(data,)).to_json()

    def beat(self, addresses: Collection[Address]) -> dict[Address, MetaqError | None]:
        """Send heartbeats to brokers, masters and slaves; return the error of each, or ``None``."""
        command = to_request(HeartBeat(), self._heartbeat)
        sent = {address: self._client.submit(address, command, ANSWER_S) for address in addresses}
        return {address: _failure(address, command, future) for address, future in sent.items()}

    def leave(self, addresses: Collection[Address]) -> None:
        """Announce to brokers that the member leaves. Brokers that do not answer notice when the connection ends."""
        command = to_request(UnregisterClient(client_id=self._id, consumer_group=self.group))
        for address, future in [(each, self._client.submit(each, command, ANSWER_S)) for each in addresses]:
            _failure(address, command, future)

    def when_members_change(self, call: Callable[[], None]) -> None:
        """Set the callback for a broker's notification that the members of the group have changed."""

        def notified(address: Address, command: RemotingCommand) -> None:
            if command.ext.get("consumerGroup") == self.group:
                call()

        self._client.register(NotifyConsumerIdsChanged.CODE, notified)

    def when_offsets_are_set(self, call: Callable[[Mapping[TopicPartition, int]], None]) -> None:
        """Set the callback for offsets that an administrator sets; it runs in a thread of the client."""
        namespace = self._routes.namespace

        def notified(address: Address, command: RemotingCommand) -> None:
            if command.ext.get("group") != self.group:
                return
            found = {}
            for queue, offset in ResetOffsets.from_json(command.body).offset_table.items():
                topic = without_namespace(queue.topic, namespace)
                if topic is not None:
                    found[TopicPartition(topic, Partition(queue.broker_name, queue.queue_id))] = offset
            call(found)

        self._client.register(RESET_CONSUMER_CLIENT_OFFSET, notified)

    def members(self, address: Address) -> Collection[str]:
        """Ask the broker at ``address`` for the ids of the members that it knows."""
        command = to_request(GetConsumerListByGroup(consumer_group=self.group))
        response = self._client.call(address, command, ANSWER_S)
        if response.code == ResponseCode.SYSTEM_ERROR:
            return ()  # brokers report an empty group this way
        body = Answers(address).accepted(response, command, f"the members of group {self.group}").body
        return ConsumerList.from_json(body).consumer_id_list

    def lock(self, broker_name: str, queues: Collection[TopicPartition]) -> set[TopicPartition]:
        """Lock queues of a broker for this member; return the queues that are locked now."""
        return self._locked(LockBatchMq(), broker_name, queues)

    def unlock(self, broker_name: str, queues: Collection[TopicPartition]) -> None:
        self._locked(UnlockBatchMq(), broker_name, queues)

    def _locked(
        self, header: LockBatchMq | UnlockBatchMq, broker_name: str, queues: Collection[TopicPartition]
    ) -> set[TopicPartition]:
        namespace = self._routes.namespace
        rows = {
            MessageQueue(
                topic=with_namespace(queue.topic, namespace), broker_name=broker_name, queue_id=queue.partition.index
            ): queue
            for queue in queues
        }
        body = LockBatchRequestBody(consumer_group=self.group, client_id=self._id, mq_set=tuple(rows))
        command = to_request(header, body.to_json(), broker_name=broker_name)
        address = self._routes.write_address(broker_name, topic=next(iter(queues)).topic)
        response = self._client.call(address, command, ANSWER_S)
        answer = Answers(address).accepted(response, command, f"locks of group {self.group}").body
        named = LockBatchResponseBody.from_json(answer).locked if answer else ()
        return {rows[one] for one in named if one in rows}

    def send_back(
        self,
        where: TopicPartition,
        log_offset: int,
        *,
        message_id: str,
        topic: str,
        delay_level: int,
        reconsume_max: int,
    ) -> None:
        """Have the broker deliver a message to the group again later, or move it to the group's dead letters.

        ``where``: the queue that it was read from; ``log_offset``: its offset in the broker's log; ``topic``: the topic
        that it was sent to originally; ``delay_level`` 0: a delay that grows; after ``reconsume_max`` times it is dead.
        """
        broker_name, namespace = where.partition.broker_name, self._routes.namespace
        header = ConsumerSendMsgBack(
            offset=log_offset,
            group=self.group,
            delay_level=delay_level,
            origin_msg_id=message_id,
            origin_topic=with_namespace(topic, namespace),
            unit_mode=False,
            max_reconsume_times=reconsume_max,
        )
        command = to_request(header, broker_name=broker_name)
        address = self._routes.write_address(broker_name, topic=where.topic)
        response = self._client.call(address, command, ANSWER_S)
        Answers(address).accepted(response, command, f"message {message_id} to be delivered again")


def _failure(address: Address, command: RemotingCommand, future: Future[RemotingCommand]) -> MetaqError | None:
    try:
        Answers(address).accepted(future.result(), command, "a heartbeat")
    except MetaqError as error:
        return error
    return None


def _subscription(topic: str, wanted: Subscription, version: int) -> SubscriptionData:
    return SubscriptionData(
        topic=topic,
        sub_string=wanted.text,
        tags_set=tuple(sorted(wanted.tags.names or ())),
        code_set=wanted.tags.hashes or (),
        sub_version=version,
        expression_type=wanted.type,
    )
