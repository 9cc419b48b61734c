"""Responses of a RocketMQ broker to sends, pulls and offset requests, with the checks of 4.9.7 or, where noted, of 5.5.

No sockets: a request and a store determine the response. Recordings of a real broker are replayed against it
(``tests/metaq/testing``), which also lists the differences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from metaq.errors import CorruptRecord, FieldError
from metaq.formats.rocketmq.batches import decode_batch
from metaq.formats.rocketmq.properties import BYTES_MAX, parse_properties
from metaq.formats.rocketmq.tags import TagFilter
from metaq.formats.topic_names import RETRY_PREFIX, rocketmq_fault
from metaq.protocols.remoting.bodies.groups import CheckClientRequestBody, MessageQueue
from metaq.protocols.remoting.bodies.offsets import ConsumerOffsets, TopicOffset, TopicStats
from metaq.protocols.remoting.bodies.routes import KVTable
from metaq.protocols.remoting.codes import ResponseCode
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers.administration import (
    GetBrokerRuntimeInfo,
    GetTopicStatsInfo,
    UpdateAndCreateTopic,
)
from metaq.protocols.remoting.headers.clients import CheckClientConfig, HeartBeat, UnregisterClient
from metaq.protocols.remoting.headers.fields import Request
from metaq.protocols.remoting.headers.offsets import (
    GetAllConsumerOffset,
    GetEarliestMsgStoretime,
    GetMaxOffset,
    GetMinOffset,
    QueryConsumerOffset,
    SearchOffsetByTimestamp,
    UpdateConsumerOffset,
)
from metaq.protocols.remoting.headers.pulls import SUBSCRIPTION, PullMessage
from metaq.protocols.remoting.headers.sends import SEND_CODES, SendMessage
from metaq.testing.rocketmq_lookups import administration_answer
from metaq.testing.rocketmq_store import INHERITED, READ, QueueLog, Store, Stored, Topic

MESSAGE_BYTES_MAX: Final = 4 << 20
PULL_MESSAGES_MAX: Final = 32
PULL_BYTES_MAX: Final = 256 << 10
SCANNED_MAX: Final = 800
PROPERTIES_BYTES_MAX: Final = BYTES_MAX

_REFUSED_TOPICS: Final = frozenset(
    {"SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"}
    | {"OFFSET_MOVED_EVENT", "SELF_TEST_TOPIC"}
)
_SENT: Final = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
_SEND_DEFAULTS: Final = {
    False: {"producerGroup": "", "defaultTopic": "", "defaultTopicQueueNums": "0"},
    True: {"a": "", "c": "", "d": "0"},
}
_PULL_DEFAULTS: Final = {"commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0"}

H = TypeVar("H", bound=Request)
SqlFilter = Callable[[Mapping[str, str]], bool]


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The client and the server of a request: ``port`` is the server's."""

    address: tuple[str, int]
    port: int
    broker_id: int = 0


@dataclass(slots=True)
class BrokerAnswers:
    """Responds from ``store`` as the broker of ``cluster`` does.

    ``is_v5``: behave as 5.5 where it differs. ``lag``: messages that slaves do not have yet. ``suggested_id``: the
    broker id in responses to pulls. ``sql`` are the supported SQL92 expressions, as functions of a message's
    properties.
    """

    store: Store
    cluster: str
    is_v5: bool = False
    lag: int = 0
    suggested_id: int = 0
    sql: dict[str, SqlFilter] = field(default_factory=dict)
    figures: dict[str, str] = field(default_factory=dict)
    """Additional or overridden figures in its reports."""

    def answer(self, command: RemotingCommand, peer: Endpoints) -> RemotingCommand:
        """Return the response to a request."""
        try:
            return self._answer(command, peer)
        except FieldError as error:  # Java: a null pointer somewhere
            return command.reply(ResponseCode.SYSTEM_ERROR, remark=f"java.lang.NullPointerException: {error}")

    def _answer(self, command: RemotingCommand, peer: Endpoints) -> RemotingCommand:
        match command.code:
            case code if code in SEND_CODES:
                return self._send(command, peer)
            case PullMessage.CODE:
                return self._pull(command, peer)
            case GetMaxOffset.CODE:
                asked = GetMaxOffset.from_ext(command.ext)
                return _offset(command, self._end(self.store.queue(asked.topic, asked.queue_id), peer))
            case GetMinOffset.CODE:
                low = GetMinOffset.from_ext(command.ext)
                return _offset(command, self.store.queue(low.topic, low.queue_id).first)
            case SearchOffsetByTimestamp.CODE:
                return self._search(command)
            case GetEarliestMsgStoretime.CODE:
                first = GetEarliestMsgStoretime.from_ext(command.ext)
                stored = self.store.queue(first.topic, first.queue_id).stored
                return command.reply(ext={"timestamp": str(stored[0].store_ms if stored else -1)})
            case QueryConsumerOffset.CODE:
                return self._committed(command)
            case UpdateConsumerOffset.CODE:
                to = UpdateConsumerOffset.from_ext(command.ext)
                self.store.group_offsets[to.consumer_group, to.topic, to.queue_id] = to.commit_offset
                return command.reply()
            case UpdateAndCreateTopic.CODE:
                made = UpdateAndCreateTopic.from_ext(command.ext)
                self.store.topics[made.topic] = Topic(made.read_queue_nums, made.write_queue_nums, made.perm)
                return command.reply(remark="not set any response code")
            case GetBrokerRuntimeInfo.CODE:
                return command.reply(body=KVTable(table=self._figures()).to_json())
            case GetTopicStatsInfo.CODE:
                return self._topic_stats(command, peer)
            case GetAllConsumerOffset.CODE:
                return self._all_committed(command)
            case CheckClientConfig.CODE:
                return self._check(command)
            case HeartBeat.CODE | UnregisterClient.CODE:
                return command.reply()
            case _:
                answer = administration_answer(self.store, command, is_v5=self.is_v5)
                return unsupported(command) if answer is None else answer

    def _send(self, command: RemotingCommand, peer: Endpoints) -> RemotingCommand:
        is_short = command.code in SendMessage.SHORT_CODES
        topic = command.ext.get("b" if is_short else "topic", "")
        if (refused := self._check_topic(command, topic)) is not None:
            return refused
        sent = SendMessage.from_ext({**_SEND_DEFAULTS[is_short], **command.ext}, command.code)
        settings = self._topic(sent)
        if settings is None:
            return _refused_send(
                command, ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!"
            )
        if sent.queue_id >= settings.queue_count:
            text = f"request queueId[{sent.queue_id}] is illegal, TopicConfig [topicName={topic}]"
            return _refused_send(command, ResponseCode.INVALID_PARAMETER if self.is_v5 else 1, text)
        queue_id = sent.queue_id if sent.queue_id >= 0 else settings.write_queues - 1
        try:
            messages = self._messages(sent, command.body)
        except CorruptRecord as error:  # Java: a buffer underflow
            return command.reply(ResponseCode.SYSTEM_ERROR, remark=f"java.nio.BufferUnderflowException: {error}")
        if len(command.body) > MESSAGE_BYTES_MAX or any(_is_too_long(properties) for _, properties, _ in messages):
            text = "the message is illegal, maybe msg body or properties length not matched."
            return _refused_send(command, ResponseCode.MESSAGE_ILLEGAL, text)
        start, ids = self.store.append(
            topic,
            queue_id,
            messages,
            port=peer.port,
            born_ms=sent.born_timestamp,
            born=peer.address,
            sys_flag=sent.sys_flag,
            reconsume_times=sent.reconsume_times or 0,
        )
        ext = {**_SENT, "msgId": ",".join(ids), "queueId": str(queue_id), "queueOffset": str(start)}
        return command.reply(ext=ext, remark="")

    def _check_topic(self, command: RemotingCommand, topic: str) -> RemotingCommand | None:
        if (text := rocketmq_fault(topic)) is not None:
            return _refused_send(command, ResponseCode.INVALID_PARAMETER if self.is_v5 else 1, text)
        if topic in _REFUSED_TOPICS:
            text = f"Sending message to topic[{topic}] is forbidden."
            return _refused_send(command, ResponseCode.NO_PERMISSION, text)
        return None

    def _topic(self, sent: SendMessage) -> Topic | None:
        """The topic's settings; a new topic's, if the template may be inherited from."""
        settings, template = self.store.topics.get(sent.topic), self.store.topics.get(sent.default_topic)
        if settings is None and sent.topic.startswith(RETRY_PREFIX):
            settings = self.store.topics[sent.topic] = Topic(1, 1)
        if settings is None and template is not None and template.perm & INHERITED:
            count = min(sent.default_topic_queue_nums, template.write_queues)
            settings = self.store.topics[sent.topic] = Topic(count, count)
        return settings

    def _messages(self, sent: SendMessage, body: bytes) -> list[tuple[bytes, dict[str, str], int]]:
        common = parse_properties(sent.properties or "")
        if not sent.batch:
            common.pop("WAIT", None)
            return [(body, {**common, "CLUSTER": self.cluster}, sent.flag)]
        return [
            (element.body, {**parse_properties(element.properties), **common, "CLUSTER": self.cluster}, element.flag)
            for element in decode_batch(body)
        ]

    def _pull(self, command: RemotingCommand, peer: Endpoints) -> RemotingCommand:
        asked = PullMessage.from_ext({**_PULL_DEFAULTS, **command.ext})
        settings = self.store.topics.get(asked.topic)
        if settings is None:
            text = f"topic[{asked.topic}] not exist, apply first please!"
            return command.reply(ResponseCode.TOPIC_NOT_EXIST, remark=text)
        if not settings.perm & READ:
            text = f"the topic[{asked.topic}] pulling message is forbidden"
            return command.reply(ResponseCode.NO_PERMISSION, remark=text)
        if not 0 <= asked.queue_id < settings.read_queues:
            text = f"queueId[{asked.queue_id}] is illegal, topic:[{asked.topic}]"
            return command.reply(ResponseCode.INVALID_PARAMETER if self.is_v5 else 1, remark=text)
        if not asked.sys_flag & SUBSCRIPTION:
            return command.reply(ResponseCode.SUBSCRIPTION_NOT_EXIST, remark="the consumer's group info not exist")
        passes = self._filter(asked)
        if passes is None:
            return command.reply(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark="parse the consumer's subscription failed"
            )
        if asked.max_msg_nums < 0 and not self.is_v5:
            return command.reply(ResponseCode.SYSTEM_ERROR, remark="java.lang.IllegalArgumentException")
        queue = self.store.queue(asked.topic, asked.queue_id)
        end = self._end(queue, peer)
        code, status, next_offset, found = _select(queue, end, asked.queue_offset, max(1, asked.max_msg_nums), passes)
        ext = {
            "suggestWhichBrokerId": str(self.suggested_id),
            "nextBeginOffset": str(next_offset),
            "minOffset": str(queue.first),
            "maxOffset": str(end),
        }
        if self.is_v5:
            ext |= {"topicSysFlag": "0", "groupSysFlag": "0"}
        return command.reply(code, ext, b"".join(each.record for each in found), status)

    def _check(self, command: RemotingCommand) -> RemotingCommand:
        subscription = CheckClientRequestBody.from_json(command.body).subscription_data
        if subscription.expression_type == "SQL92" and subscription.sub_string not in self.sql:
            return command.reply(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark=f"cannot parse {subscription.sub_string}"
            )
        return command.reply()

    def _filter(self, asked: PullMessage) -> Callable[[Stored], bool] | None:
        """Return the filter of a pull; ``None``: it is unknown."""
        if asked.expression_type == "SQL92":
            known = self.sql.get(asked.subscription or "")
            return lambda stored: (
                known is None or known(stored.properties)
            )  # an expression that does not compile matches everything
        try:
            hashes = TagFilter.parse(asked.subscription).hashes
        except ValueError:
            return None
        return lambda stored: hashes is None or stored.tag_hash in hashes

    def _end(self, queue: QueueLog, peer: Endpoints) -> int:
        return max(queue.first, queue.end - self.lag) if peer.broker_id else queue.end

    def _search(self, command: RemotingCommand) -> RemotingCommand:
        asked = SearchOffsetByTimestamp.from_ext(command.ext)
        queue = self.store.queue(asked.topic, asked.queue_id)
        if self.is_v5:
            return _offset(command, queue.boundary(asked.timestamp, asked.boundary_type == "upper"))
        return _offset(command, queue.nearest(asked.timestamp))

    def _figures(self) -> dict[str, str]:
        version = ("500", "V5_5_0") if self.is_v5 else ("407", "V4_9_7")
        started = {"bootTimestamp": str(self.store.clock_ms()), "runtime": "[ 0 days, 0 hours, 0 minutes, 0 seconds ]"}
        return {"brokerVersion": version[0], "brokerVersionDesc": version[1]} | started | self.figures

    def _topic_stats(self, command: RemotingCommand, peer: Endpoints) -> RemotingCommand:
        name = GetTopicStatsInfo.from_ext(command.ext).topic
        topic = self.store.topics.get(name)
        if topic is None:
            return command.reply(ResponseCode.TOPIC_NOT_EXIST, remark=f"topic[{name}] not exist")
        broker = command.ext.get("bname", "")
        table = {}
        for number in range(topic.write_queues):
            queue = self.store.queue(name, number)
            table[MessageQueue(topic=name, broker_name=broker, queue_id=number)] = TopicOffset(
                min_offset=queue.first,
                max_offset=self._end(queue, peer),
                last_update_timestamp=queue.stored[-1].store_ms if queue.stored else 0,
            )
        return command.reply(body=TopicStats(offset_table=table).to_json(bare_number_keys=True))

    def _all_committed(self, command: RemotingCommand) -> RemotingCommand:
        table: dict[str, dict[int, int]] = {}
        for (group, topic, queue_id), offset in self.store.group_offsets.items():
            table.setdefault(f"{topic}@{group}", {})[queue_id] = offset
        return command.reply(body=ConsumerOffsets(offset_table=table).to_json(bare_number_keys=True))

    def _committed(self, command: RemotingCommand) -> RemotingCommand:
        asked = QueryConsumerOffset.from_ext(command.ext)
        offset = self.store.group_offsets.get((asked.consumer_group, asked.topic, asked.queue_id))
        if offset is not None:
            return _offset(command, offset)
        queue = self.store.queue(asked.topic, asked.queue_id)
        if queue.first > 0 or (self.is_v5 and (asked.set_zero_if_not_found is False or not queue.stored)):
            return command.reply(
                ResponseCode.QUERY_NOT_FOUND, remark="Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
            )
        return _offset(command, 0)


def _select(
    queue: QueueLog, end: int, offset: int, messages_max: int, passes: Callable[[Stored], bool]
) -> tuple[ResponseCode, str, int, list[Stored]]:
    """Return code, status, next offset, and the messages of a pull."""
    if end == 0:
        code = ResponseCode.PULL_NOT_FOUND if offset == 0 else ResponseCode.PULL_OFFSET_MOVED
        return code, "NO_MESSAGE_IN_QUEUE", 0, []
    if offset < queue.first:
        return ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", queue.first, []
    if offset == end:
        return ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", offset, []
    if offset > end:
        return ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", end, []
    found: list[Stored] = []
    byte_count, position = 0, offset
    for stored in queue.stored[offset - queue.first : end - queue.first][:SCANNED_MAX]:
        full = len(found) >= min(messages_max, PULL_MESSAGES_MAX)
        if found and (full or byte_count + len(stored.record) > PULL_BYTES_MAX):
            break
        position += 1
        if passes(stored):
            found.append(stored)
            byte_count += len(stored.record)
    if not found:
        return ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE", position, []
    return ResponseCode.SUCCESS, "FOUND", position, found


def unsupported(command: RemotingCommand) -> RemotingCommand:
    """The response to a request of an unknown kind."""
    text = f" request type {command.code} not supported"
    return command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=text)


def _offset(command: RemotingCommand, offset: int) -> RemotingCommand:
    return command.reply(ext={"offset": str(offset)})


def _refused_send(command: RemotingCommand, code: int, text: str) -> RemotingCommand:
    return command.reply(code, _SENT, remark=text)


def _is_too_long(properties: Mapping[str, str]) -> bool:
    text = "\x02".join(f"{name}\x01{value}" for name, value in properties.items())
    return len(text.encode()) > PROPERTIES_BYTES_MAX
