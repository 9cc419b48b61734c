"""Workers that use RocketMQ's protocol on the same partitions: a producer, and the member of a group."""

from __future__ import annotations

import time
from abc import abstractmethod
from typing import Final

from faults.history import NOT_REPORTED, Pulled, Put, Sent
from faults.load.worker import PlannedMessage, SharedWork, Worker
from faults.payload import PayloadFault, read_payload
from faults.stored import PartitionKey
from metaq.backends.rocketmq.session import Session
from metaq.formats.rocketmq.batches import BatchElement, encode_batch
from metaq.formats.rocketmq.message_ids import OffsetMessageId
from metaq.formats.rocketmq.properties import write_properties
from metaq.formats.rocketmq.records import read_records
from metaq.protocols.remoting.codes import ResponseCode
from metaq.protocols.remoting.headers import to_request
from metaq.protocols.remoting.headers.offsets import (
    QueryConsumerOffset,
    QueryConsumerOffsetResponse,
    UpdateConsumerOffset,
)
from metaq.protocols.remoting.headers.pulls import PullMessage, PullMessageResponse
from metaq.protocols.remoting.headers.sends import SEND_BATCH_MESSAGE, SendMessage, SendMessageResponse

BATCH_MESSAGES_MAX: Final = 30
PULL_MESSAGES: Final = 32
WITH_SUBSCRIPTION: Final = 4
OFFSET_IN_STRETCH: Final = (1 << 40) - 1
"""The bits of a physical offset that are the offset within a partition below 1 TiB. Source: docs/log-format.md,
"Physical offsets".
"""

BUSY: Final = (ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE)
"""Codes with which a stopping broker may refuse."""


class RocketmqWorker(Worker):
    def visit(self, lane: str) -> None:
        assert self.shift.rocketmq is not None
        session = Session.connect(self.shift.rocketmq, self.shift.timeouts)
        self.lane = lane
        try:
            while not self.shift.over.is_set():
                self.step(session)
        finally:
            session.close()

    @abstractmethod
    def step(self, session: Session) -> None:
        """Do one operation; errors of the connection may be raised."""


class RocketmqProducer(RocketmqWorker):
    """Sends single messages and batches, with tags and keys, and waits for each answer."""

    def step(self, session: Session) -> None:
        partition_key = self.partition_key()
        count = self.random.randint(2, BATCH_MESSAGES_MAX) if self.random.random() < 0.3 else 1
        letters = [self.small_letter() for _ in range(count)]
        puts = [self.history.put_begins(self.lane, partition_key, (_unframed(letter),)) for letter in letters]
        properties = write_properties({"TAGS": self.random.choice(("red", "blue")), "KEYS": str(letters[0].sent.key)})
        payloads = [letter.payload for letter in letters]
        if count == 1:
            body, code, properties_of_all = payloads[0], SendMessage.CODE, properties
        else:
            elements = [BatchElement(payload, properties.encode()) for payload in payloads]
            body, code, properties_of_all = encode_batch(elements), SEND_BATCH_MESSAGE, ""
        header = _header(partition_key, properties_of_all, batch=count > 1)
        response = session.call(to_request(header, body, code=code), "a send")
        if response.code == ResponseCode.SUCCESS:
            self._acknowledged(puts, partition_key, session.read(response, SendMessageResponse))
        else:
            self._refused(puts, response.code, response.remark or "")

    def _acknowledged(self, puts: list[Put], partition_key: PartitionKey, answer: SendMessageResponse) -> None:
        ids = answer.msg_id.split(",")
        if len(ids) != len(puts) or answer.queue_id != partition_key.index:
            self.history.odd("malformed receipt", f"{puts[0]}: {answer}")
            return
        for position, (put, text) in enumerate(zip(puts, ids, strict=True)):
            offset = OffsetMessageId.parse(text).physical_offset & OFFSET_IN_STRETCH
            self.history.put_acknowledged(put, NOT_REPORTED, partition_key.index, offset)
            put.queue_offset = answer.queue_offset + position

    def _refused(self, puts: list[Put], code: int, remark: str) -> None:
        for put in puts:
            self.history.put_refused(put, f"{code} {remark}", definite=False)
        if code not in BUSY and not self.shift.refusals_expected:
            self.history.odd("refused send", f"{puts[0]}: {code} {remark}")


class RocketmqMember(RocketmqWorker):
    """The only member of its group: continues from the group's position, pulls, and commits the next position.

    An acknowledged commit must be the position from then on, also after kills. An unanswered one may be.
    """

    def __init__(self, name: str, shift: SharedWork, seed: str) -> None:
        super().__init__(name, shift, seed)
        self._group = f"group-{name}"
        self._positions: dict[PartitionKey, set[int]] = {}

    def step(self, session: Session) -> None:
        partition_key = self.partition_key()
        position = self._position(session, partition_key)
        following = self._pull(session, partition_key, position)
        if following is not None and following != position:
            self._commit(session, partition_key, following)

    def _position(self, session: Session, partition_key: PartitionKey) -> int:
        topic, queue = partition_key
        command = to_request(QueryConsumerOffset(consumer_group=self._group, topic=topic, queue_id=queue))
        response = session.call(command, "a position")
        position = 0
        if response.code == ResponseCode.SUCCESS:
            position = session.read(response, QueryConsumerOffsetResponse).offset
        elif response.code != ResponseCode.QUERY_NOT_FOUND:
            self.history.odd("refused position", f"{self.lane} {partition_key}: {response.code} {response.remark}")
        possible = self._positions.get(partition_key, {0})
        if position not in possible:
            self.history.odd("lost position", f"{self.lane} {partition_key}: {position}, not {sorted(possible)}")
        self._positions[partition_key] = {position}
        return position

    def _pull(self, session: Session, partition_key: PartitionKey, position: int) -> int | None:
        header = PullMessage(
            consumer_group=self._group,
            topic=partition_key.topic,
            queue_id=partition_key.index,
            queue_offset=position,
            max_msg_nums=PULL_MESSAGES,
            sys_flag=WITH_SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_millis=0,
            subscription="*",
            sub_version=0,
        )
        response = session.call(to_request(header), "a pull")
        if response.code == ResponseCode.SUCCESS:
            self._note(partition_key, position, response.body)
        elif response.code not in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED):
            self.history.odd("refused pull", f"{self.lane} {partition_key}: {response.code} {response.remark}")
            return None
        elif response.code == ResponseCode.PULL_OFFSET_MOVED and position and not self.shift.retention:
            self.history.odd("moved position", f"{self.lane} {partition_key} at {position}: {response.remark}")
        return session.read(response, PullMessageResponse).next_begin_offset

    def _note(self, partition_key: PartitionKey, position: int, body: bytes) -> None:
        for expected, record in enumerate(read_records(body), start=position):
            if (record.queue_id, record.queue_offset) != (partition_key.index, expected):
                self.history.odd("wrong record", f"{self.lane} {partition_key}: {expected} expected, {record[:3]}")
            try:
                key = read_payload(record.body)
            except PayloadFault as fault:
                self.history.odd("altered record", f"{self.lane} {partition_key} at {expected}: {fault}")
                continue
            offset = record.physical_offset & OFFSET_IN_STRETCH
            self.history.pulled.add(Pulled(partition_key, record.queue_offset, offset, key))

    def _commit(self, session: Session, partition_key: PartitionKey, position: int) -> None:
        topic, queue = partition_key
        header = UpdateConsumerOffset(consumer_group=self._group, topic=topic, queue_id=queue, commit_offset=position)
        self._positions[partition_key].add(position)
        response = session.call(to_request(header), "a commit")
        if response.code == ResponseCode.SUCCESS:
            self._positions[partition_key] = {position}
        elif response.code not in BUSY:
            self.history.odd("refused commit", f"{self.lane} {partition_key}: {response.code} {response.remark}")


def _unframed(letter: PlannedMessage) -> Sent:
    return letter.sent._replace(flag=NOT_REPORTED, checksum=NOT_REPORTED, frame_bytes=0)


def _header(partition_key: PartitionKey, properties: str, *, batch: bool) -> SendMessage:
    return SendMessage(
        producer_group="faults",
        topic=partition_key.topic,
        default_topic="TBW102",
        default_topic_queue_nums=1,
        queue_id=partition_key.index,
        sys_flag=0,
        born_timestamp=int(time.time() * 1000),
        flag=0,
        properties=properties,
        batch=batch,
    )
