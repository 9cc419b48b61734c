"""Every request that the broker knows, with values and bodies that no client should send: each is answered in words."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

import pytest
from metaq_broker.clock import Clock
from metaq_broker.log.engine.engine import Engine
from metaq_broker.log.engine.stores import TopicStores
from metaq_broker.log.files.files import Files
from metaq_broker.log.sync.group_commit import GroupCommit
from metaq_broker.operate.config.configuration import parse
from metaq_broker.rocketmq.dispatcher import JSON_BODIES, JSON_BYTES_MAX
from metaq_broker.rocketmq.front_end import FrontEnd as RocketmqFrontEnd
from metaq_broker.rocketmq.parts import FrontEndParts
from metaq_broker.rocketmq.server import BrokerServer
from metaq_broker.rocketmq.session import Call
from metaq_broker.statistics import Statistics
from remoting_brokers import FakeSession, until
from stored import QuickFiles

from metaq.formats.message_id import IdWorker
from metaq.formats.rocketmq.batches import BatchElement, encode_batch
from metaq.protocols.remoting.bodies.groups import (
    ConsumerData,
    HeartbeatData,
    LockBatchRequestBody,
    MessageQueue,
    SubscriptionData,
)
from metaq.protocols.remoting.codes import ResponseCode
from metaq.protocols.remoting.command import RemotingCommand, request
from metaq.protocols.remoting.headers import REQUESTS
from metaq.protocols.remoting.headers.administration import UpdateAndCreateTopic
from metaq.protocols.remoting.headers.fields import fields_of
from metaq.protocols.remoting.headers.pulls import PullMessage
from metaq.protocols.remoting.headers.routes import RegisterBroker, UnregisterBroker
from metaq.protocols.remoting.headers.sends import SendMessage
from metaq.protocols.remoting.headers.transactions import EndTransaction

SYSTEM: Final = (
    "[system]\nbrokerId=5\nnumPartitions=4\nunflushThreshold=0\nunflushInterval=1000\nmaxSegmentSize=1048576\n"
    "maxTransferSize=1048576\nhostName=127.0.0.1\ndataPath={folder}\n[zookeeper]\nzk.zkEnable=false\n[topic=t]\n"
    "[rocketmq]\nenabled=true\nport=0\n"
)
NUMBERS: Final = [str(each) for each in (-(1 << 63), -(1 << 31), -1, 0, 1 << 31, (1 << 63) - 1)] + [
    "9" * 5000,
    "\u0663",
]
TEXTS: Final = [
    "", ".", "../../x", "a/b", "\x00", "a\x01b\x02c", "\ud800", "n" * 255, "n" * 256, "%RETRY%", "%RETRY%../x",
    "%DLQ%" + "g" * 250, "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "TBW102", "t" * 100_000,
]  # fmt: skip
PLAUSIBLE: Final[Mapping[str, str]] = {
    "topicFilterType": "SINGLE_TAG", "attributes": "+message.type=NORMAL",
    "topic": "t", "b": "t", "consumerGroup": "g", "group": "g", "groupName": "g", "queueId": "0", "e": "0",
    "sysFlag": "4", "maxMsgNums": "32", "commitOrRollback": "8", "perm": "6", "readQueueNums": "4",
    "writeQueueNums": "4", "defaultTopic": "TBW102", "c": "TBW102", "brokerId": "0", "maxNum": "5",
}  # fmt: skip
NOTHING_THERE: Final = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED)
VERSIONS: Final = (0, 121, 407, 479)


class Session(FakeSession):
    """A connection that takes parts of files, too."""

    def send_file(self, response: RemotingCommand, _file: object) -> None:
        self.responses.append(response)


class FrontEnd:
    """All of the front end on a log in a folder, without its port."""

    def __init__(self, folder: Path, files: Files | None = None) -> None:
        self.files, self.clock = files or QuickFiles(), Clock()
        config = parse(SYSTEM.format(folder=folder).encode())
        assert config.rocketmq is not None
        self.commit, self.stores = GroupCommit(), TopicStores.open(self.files, self.clock, config)
        statistics = Statistics(self.clock.monotonic, lambda topic: False)
        self.engine = Engine(config, self.stores, self.commit, IdWorker(5), self.clock, statistics)
        calls = self._apply, self._delete, self._retire, lambda: None
        parts = FrontEndParts(config, self.engine, self.files, self.clock, *calls)
        self.front_end = RocketmqFrontEnd.open(parts, config.rocketmq, serves=True)
        assert self.front_end.server is not None
        self.server: BrokerServer = self.front_end.server
        self.session = Session()
        self.server.waiting.start()
        assert self.server.lookups is not None
        self.server.lookups.start()

    def _apply(self, config: Any) -> None:
        self.engine.config = config

    async def _delete(self, topic: str) -> None:
        """Keep the messages."""

    async def _retire(self) -> None:
        """Keep them, too."""

    async def answers(self, commands: list[RemotingCommand]) -> list[RemotingCommand | None]:
        """Return the responses to requests; all of them must come. ``None``: it was decided that there is none."""
        calls = []
        for command in commands:
            session = Session()
            self.server.dispatcher.carry_out(Call(command, cast("Any", session)))
            calls.append(session)
            if len(calls) % 50 == 0:
                await asyncio.sleep(0)
        await until(lambda: all(session.responses for session in calls))
        assert all(len(session.responses) == 1 for session in calls)
        return [session.responses[0] for session in calls]

    async def answer(self, code: int, ext: dict[str, str], body: bytes = b"") -> RemotingCommand:
        """Return the response to one request."""
        (response,) = await self.answers([request(code, ext, body)])
        assert response is not None
        return response

    async def close(self) -> None:
        """End it."""
        await self.front_end.stop(1)
        await self.commit.drain()
        self.commit.stop()
        self.stores.close(clean=True)


def play(folder: Path, commands: list[RemotingCommand]) -> list[RemotingCommand | None]:
    """Return the responses; the broker takes and gives messages before and after."""

    async def run() -> list[RemotingCommand | None]:
        front_end = FrontEnd(folder)
        try:
            await works(front_end, 0)
            found = await front_end.answers(commands)
            await works(front_end, 1)
            return found
        finally:
            await front_end.close()

    return asyncio.run(run())


async def works(front_end: FrontEnd, number: int) -> None:
    """See that a message arrives in a topic of its own."""
    topic = f"fine-{number}"
    fields = {"a": "p", "b": topic, "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "5", "h": "0", "i": ""}
    sent = await front_end.answer(SendMessage.CODE, fields, b"fine")
    assert (sent.code, sent.ext.get("queueOffset")) == (0, "0"), sent.remark
    pull = {
        "consumerGroup": "fine", "topic": topic, "queueId": "0", "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "4",
        "subscription": "*",
    }  # fmt: skip
    got = await front_end.answer(PullMessage.CODE, pull)
    assert (got.code, b"fine" in got.body) == (0, True), got.remark


def base(code: int) -> dict[str, str]:
    """The fields of a request, all of them, as a client might send them."""
    header = REQUESTS[code]
    short = code in header.SHORT_CODES
    ext = {}
    for field in fields_of(header):
        name = field.short if short else field.name
        default = {"text": "x", "boolean": "false"}.get(field.type.name, "0")
        ext[name] = PLAUSIBLE.get(name) or PLAUSIBLE.get(field.name) or default
    return ext


def wrong_fields() -> Iterator[RemotingCommand]:
    """Requests with one wrong value, and with one field too few."""
    for code in sorted(REQUESTS):
        header, ext = REQUESTS[code], base(code)
        for version in VERSIONS:
            yield RemotingCommand(code, ext, version=version)
        for field in fields_of(header):
            name = field.short if code in header.SHORT_CODES else field.name
            yield request(code, {key: value for key, value in ext.items() if key != name})
            for value in TEXTS if field.type.name == "text" else NUMBERS:
                yield request(code, {**ext, name: value})


def bodies() -> list[bytes]:
    """Bodies of requests of all kinds, and what is none."""
    subscription = SubscriptionData(topic="t", sub_string="\x00", tags_set=("",), sub_version=(1 << 63) - 1)
    group = ConsumerData(group_name="../g", subscription_data_set=(subscription, subscription))
    queues = tuple(MessageQueue(topic="t", broker_name="b", queue_id=each) for each in (-1, (1 << 31) - 1))
    return [
        b"", b"\x00" * 64, b"{}", b"[]", b"null", b"[" * 10_000, b'{"a":' * 10_000, b"1" * 5000, b'{"version":1e999}',
        HeartbeatData(client_id="c", consumer_data_set=(group, group)).to_json(),
        LockBatchRequestBody(consumer_group="g", client_id="c", mq_set=queues).to_json(),
        b'{"groupName":"g","retryQueueNums":-5,"retryMaxTimes":-2147483648,"brokerId":9223372036854775807}',
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"x":{"topicName":"y","readQueueNums":-1}}}}',
        encode_batch([BatchElement(b"one", b"TAGS\x01a"), BatchElement(b"", b"\x01\x02\x01")]),
        encode_batch([BatchElement(b"one")])[:-1], b"\xff" * 40, b'{1:' + b'"' * (1 << 20),
    ]  # fmt: skip


def other_bodies() -> Iterator[RemotingCommand]:
    """Requests with the bodies of others."""
    for code in sorted(REQUESTS):
        for body in bodies():
            yield request(code, base(code), body)


@pytest.mark.parametrize("requests", [wrong_fields, other_bodies])
def test_each_is_answered_in_words(requests: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    commands = list(requests())
    with caplog.at_level(logging.ERROR):
        responses = play(tmp_path, commands)
    failed = [record.exc_info and repr(record.exc_info[1]) for record in caplog.records if record.exc_info]
    assert failed == []
    for command, response in zip(commands, responses, strict=True):
        if response is None:  # the producer does not know, and is asked again
            assert command.code == EndTransaction.CODE
        else:
            assert response.code in (0, *NOTHING_THERE) or response.remark, (command.code, dict(command.ext))


REGISTRATION: Final = {
    "brokerName": "metaq", "brokerAddr": "10.9.9.9:1", "clusterName": "Other", "brokerId": "0", "haServerAddr": "",
}  # fmt: skip


def test_nobody_takes_the_broker_s_place_in_its_own_name_server(tmp_path: Path) -> None:
    async def run() -> None:
        front_end = FrontEnd(tmp_path)
        try:
            registration = front_end.server._registration
            registration.start()
            own = str(front_end.server.address)
            left = {**REGISTRATION, "brokerAddr": own, "clusterName": "DefaultCluster"}
            await front_end.answer(UnregisterBroker.CODE, left)
            refused = await front_end.answer(RegisterBroker.CODE, REGISTRATION)
            assert (refused.code, "the broker of this port has it" in (refused.remark or "")) == (1, True)
            await works(front_end, 0)  # makes a topic, which is registered
            route = front_end.server.routes.route("fine-0")
            assert route is not None
            assert [each.broker_addrs for each in route.broker_datas] == [{0: own}]
            await registration.stop()
        finally:
            await front_end.close()

    asyncio.run(run())


@pytest.mark.parametrize("code", sorted(JSON_BODIES))
def test_large_bodies_are_refused_unread(code: int, tmp_path: Path) -> None:
    """Reading JSON is slow: 16 MiB of quotation marks kept the event loop for as many seconds."""

    async def run() -> None:
        front_end = FrontEnd(tmp_path)
        try:
            refused = await front_end.answer(code, base(code), b"{1:" + b'"' * JSON_BYTES_MAX)
            assert refused.code == ResponseCode.SYSTEM_ERROR
            assert "has 1048579 bytes; at most 1048576 are allowed" in (refused.remark or "")
        finally:
            await front_end.close()

    asyncio.run(run())


def test_any_queue_of_a_topic_without_queues(tmp_path: Path) -> None:
    async def run() -> None:
        front_end = FrontEnd(tmp_path)
        try:
            made = {**base(UpdateAndCreateTopic.CODE), "topic": "none", "writeQueueNums": "0"}
            assert (await front_end.answer(UpdateAndCreateTopic.CODE, made)).code == 0
            send = {**base(SendMessage.CODE), "b": "none", "e": "-1"}
            refused = await front_end.answer(SendMessage.CODE, send, b"x")
            assert refused.code == ResponseCode.NO_PERMISSION
            assert "has no queue to write" in (refused.remark or "")
        finally:
            await front_end.close()

    asyncio.run(run())
