"""Replies are pushed to the producer that waits, and stored; what cannot be pushed is refused with a sentence."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from metaq_broker.log.engine.outcomes import StorageFailed
from metaq_broker.rocketmq.groups.replies import Replies
from metaq_broker.rocketmq.messages.message_store import OnStored, OutgoingMessage, StoredBatch
from metaq_broker.rocketmq.sends.sends import SendChecks
from metaq_broker.rocketmq.system_topics import NOT_WRITTEN_BY_CLIENTS
from remoting_brokers import BROKER, HERE, FakeSession, Front
from remoting_headers import send_header

from metaq.errors import ConnectionFailed
from metaq.formats.rocketmq.properties import parse_properties, write_properties
from metaq.protocols.remoting.bodies.groups import HeartbeatData, ProducerData
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers import to_request
from metaq.protocols.remoting.headers.clients import HeartBeat, PushReplyMessage, UnregisterClient

V1, V2 = 324, 325
TOPIC = "DefaultCluster_REPLY_TOPIC"
NOW_MS = 1_795_000_000_000
REPLY = {"CORRELATION_ID": "c1", "REPLY_TO_CLIENT": "1", "MSG_TYPE": "reply", "colour": "red"}


class Kept:
    """A store that notes what it is given; with ``fails`` the disk refuses."""

    store_host = HERE

    def __init__(self) -> None:
        self.messages: list[tuple[str, int, OutgoingMessage]] = []
        self.fails = False

    def append(self, topic: str, queue: int, messages: Sequence[OutgoingMessage], done: OnStored) -> None:
        self.messages += [(topic, queue, each) for each in messages]
        done(StorageFailed("full") if self.fails else StoredBatch(queue, 7, [4711], NOW_MS, HERE.hex().upper()))


class Setting:
    def __init__(self, folder: Path, *, keeps: bool = True) -> None:
        self.front, self.kept = Front(folder), Kept()
        Replies(
            *(self.front.members, self.front.topics, self.kept, lambda: NOW_MS, BROKER),
            SendChecks("127.0.0.1", 100),
            keeps=keeps,
        ).mount(self.front.dispatcher)

    def producer(self, client_id: str, *groups: str) -> FakeSession:
        session = FakeSession()
        body = HeartbeatData(
            client_id=client_id, producer_data_set=tuple(ProducerData(group_name=each) for each in groups)
        )
        assert self.front.ask(HeartBeat(), body, session).code == 0
        return session

    def command(
        self, properties: dict[str, str], body: bytes = b"yes", code: int = V2, **changes: object
    ) -> RemotingCommand:
        header = replace(send_header(topic=TOPIC, properties=write_properties(properties)), **changes)  # type: ignore[arg-type]
        return to_request(header, body, code=code)

    def refused(self, properties: dict[str, str], body: bytes = b"yes", **changes: object) -> tuple[int, str]:
        response = self.front.ask_raw(self.command(properties, body, **changes))  # type: ignore[arg-type]
        return response.code, response.remark or ""

    def replied(
        self, waiting: FakeSession, answer_code: int = 0, code: int = V2, error: Exception | None = None
    ) -> tuple[RemotingCommand, RemotingCommand]:
        """What the producer was given, and what the consumer was answered."""

        async def run() -> tuple[RemotingCommand, RemotingCommand]:
            asking = self.front.send(self.command(REPLY, code=code))
            while not waiting.called:
                await asyncio.sleep(0)
            pushed, future = waiting.called.pop()
            if error is None:
                future.set_result(pushed.reply(answer_code, remark="no" if answer_code else None))
            else:
                future.set_exception(error)
            while not asking.responses:
                await asyncio.sleep(0)
            assert asking.responses[0] is not None
            return pushed, asking.responses[0]

        return asyncio.run(run())


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path)


@pytest.mark.parametrize("code", [V1, V2])
def test_a_reply_is_pushed_to_the_producer_and_stored(setting: Setting, code: int) -> None:
    waiting = setting.producer("1", "g", "h")
    setting.producer("2", "g")
    pushed, response = setting.replied(waiting, code=code)
    header = PushReplyMessage.from_ext(pushed.ext)
    assert (pushed.code, pushed.body, header.topic, header.store_host) == (326, b"yes", TOPIC, "127.0.0.1:10911")
    assert (header.born_host, header.store_timestamp) == ("127.0.0.1:50000", NOW_MS)
    assert parse_properties(header.properties or "") == {**REPLY, "PUSH_REPLY_TIME": str(NOW_MS)}
    ((topic, queue, message),) = setting.kept.messages
    assert (topic, queue, message.body, parse_properties(message.properties)) == (TOPIC, 0, b"yes", REPLY)
    assert (response.code, response.ext["queueOffset"], response.ext["msgId"]) == (
        0,
        "7",
        f"{HERE.hex().upper()}{4711:016X}",
    )


def test_a_reply_that_was_taken_is_a_success_even_if_the_disk_refuses(setting: Setting) -> None:
    setting.kept.fails = True
    response = setting.replied(setting.producer("1", "g"))[1]
    assert (response.code, response.ext["msgId"], response.ext["queueOffset"]) == (0, "0", "0")


def test_replies_are_not_stored_where_they_are_not_to_be(tmp_path: Path) -> None:
    setting = Setting(tmp_path, keeps=False)
    response = setting.replied(setting.producer("1", "g"))[1]
    assert (response.code, response.ext["msgId"], setting.kept.messages) == (0, "0", [])


def test_a_producer_that_does_not_take_the_reply_is_named_and_nothing_is_stored(setting: Setting) -> None:
    waiting = setting.producer("1", "g")
    response = setting.replied(waiting, answer_code=1)[1]
    assert (response.code, response.remark) == (1, "client 1 did not take the reply: no")
    gone = ConnectionFailed("127.0.0.1:1", "PUSH_REPLY_MESSAGE_TO_CLIENT", "the client is gone")
    assert "did not take the reply: " in (setting.replied(waiting, error=gone)[1].remark or "")
    assert setting.kept.messages == []


def test_replies_that_cannot_be_pushed(setting: Setting) -> None:
    nobody = "no producer with the client id 1 is connected to broker broker-a"
    assert setting.refused(REPLY) == (1, nobody)
    waiting = setting.producer("1", "g", "h")
    setting.front.ask(UnregisterClient(client_id="1", producer_group="g", consumer_group=""), session=waiting)
    assert setting.front.members.producer_of("1") is waiting  # of another group still
    setting.front.lose(waiting)
    assert setting.refused(REPLY) == (1, nobody)
    assert setting.refused({"a": "b"}) == (1, "the reply names no client: it has no property REPLY_TO_CLIENT")
    assert setting.refused(REPLY, topic="never")[0] == 17
    assert "queueId[9] is illegal" in setting.refused(REPLY, queue_id=9)[1]
    assert setting.refused(REPLY, b"x" * 101)[0] == 13


@pytest.mark.parametrize("topic", sorted(NOT_WRITTEN_BY_CLIENTS))
def test_a_reply_is_not_stored_where_clients_do_not_send(setting: Setting, topic: str) -> None:
    """A reply in the topic of delayed messages would be moved to any topic, whatever the account may write."""
    setting.producer("1", "g")
    assert setting.refused(REPLY, topic=topic) == (16, f"Sending message to topic[{topic}] is forbidden.")


def test_the_newest_connection_of_a_client_gets_the_reply(setting: Setting) -> None:
    """After a reconnection, of which the broker has not noticed the end of the old one."""
    old, new = setting.producer("1", "g"), setting.producer("1", "g")
    assert setting.front.members.producer_of("1") is new
    setting.front.lose(new)
    assert setting.front.members.producer_of("1") is old
