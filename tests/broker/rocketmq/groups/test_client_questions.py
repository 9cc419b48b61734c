"""What administrators ask of clients by way of the broker: offsets are reset, questions are handed over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from metaq_broker.log.engine.outcomes import PartitionUnavailable
from metaq_broker.log.engine.topics import ServedTopic
from metaq_broker.rocketmq.groups.group_settings import GroupSettings
from remoting_brokers import BROKER, FakeSession, Front

from metaq.errors import ConnectionFailed, DeadlineExceeded
from metaq.formats.rocketmq.message_ids import OffsetMessageId
from metaq.formats.rocketmq.records import Record, read_record
from metaq.protocols.remoting.bodies.groups import ConsumerData, HeartbeatData, MessageQueue
from metaq.protocols.remoting.bodies.offsets import ResetOffsets
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers import to_request
from metaq.protocols.remoting.headers.clients import ConsumeMessageDirectly, GetConsumerRunningInfo, HeartBeat
from metaq.protocols.remoting.headers.fields import Request
from metaq.protocols.remoting.headers.offsets import ResetOffset


@pytest.fixture
def front(tmp_path: Path) -> Front:
    made = Front(tmp_path)
    made.topics.create("T", ServedTopic(2, 1))
    made.store.times["T", 0] = [1000, 1300, 2000]
    return made


def member(front: Front, client: str) -> FakeSession:
    session = FakeSession()
    body = HeartbeatData(client_id=client, consumer_data_set=(ConsumerData(group_name="g"),))
    assert front.ask(HeartBeat(), body, session).code == 0
    session.pushed.clear()
    return session


def reset(front: Front, time_ms: int, *, force: bool = True, topic: str = "T") -> RemotingCommand:
    return front.ask(ResetOffset(group="g", topic=topic, timestamp=time_ms, is_force=force))


def offsets(response: RemotingCommand) -> dict[int, int]:
    table = ResetOffsets.from_json(response.body).offset_table
    assert {queue.broker_name for queue in table} == {BROKER}
    return {queue.queue_id: offset for queue, offset in table.items()}


def test_the_clients_of_a_group_are_notified_where_to_go_on(front: Front) -> None:
    second, first = member(front, "2"), member(front, "1")
    second.pushed.clear()
    front.offsets.commit("T", "g", 0, 1)
    assert offsets(reset(front, 1300)) == {0: 1, 1: 0}
    assert offsets(reset(front, 1301)) == {0: 2, 1: 0}
    assert offsets(reset(front, -1)) == {0: 3, 1: 0}
    assert offsets(reset(front, -1, force=False)) == {0: 1, 1: 0}  # never forward without force
    assert offsets(reset(front, 0, force=False)) == {0: 0, 1: 0}
    for session in (first, second):
        assert [(each.code, each.is_oneway) for each in session.pushed] == [(220, True)] * 5
        assert offsets(session.pushed[1]) == {0: 2, 1: 0}
        assert session.pushed[1].ext["topic"] == "T"
    assert front.offsets.get("T", "g", 0) == 1  # they commit when they are there
    assert (
        MessageQueue(topic="T", broker_name=BROKER, queue_id=0)
        in ResetOffsets.from_json(first.pushed[0].body).offset_table
    )


def test_offsets_that_cannot_be_reset(front: Front) -> None:
    assert (reset(front, 0).code, reset(front, 0, topic="never").code) == (1, 1)
    front.offsets.commit("T", "g", 0, 1)
    assert reset(front, 0).code == 206
    session = member(front, "1")
    front.store.faults["T", 1] = PartitionUnavailable("its segments do not fit")
    response = reset(front, 0)
    assert (response.code, response.remark) == (1, "queue 1 of topic T cannot be read: its segments do not fit")
    assert session.pushed == []


def test_a_group_without_clients_that_has_committed_nothing_is_placed(front: Front) -> None:
    front.groups.put("g", GroupSettings())
    assert offsets(reset(front, 1300)) == {0: 1, 1: 0}
    assert (front.offsets.get("T", "g", 0), front.offsets.get("T", "g", 1)) == (1, 0)
    assert reset(front, 2000).code == 206  # from now on it has: clients before 5.0 commit themselves
    newer = front.ask(ResetOffset(group="g", topic="T", timestamp=2000, is_force=True), version=479)
    assert offsets(newer) == {0: 2, 1: 0}
    assert front.offsets.get("T", "g", 0) == 2


def test_one_queue_is_reset_and_no_other(front: Front) -> None:
    def one(queue: int, offset: int, time_ms: int = -1) -> RemotingCommand:
        header = ResetOffset(group="g", topic="T", timestamp=time_ms, is_force=True, queue_id=queue, offset=offset)
        return front.ask(header, version=479)

    session = member(front, "1")
    assert offsets(one(0, 2)) == {0: 2}
    assert offsets(one(0, -1, 1300)) == {0: 1}
    assert [offsets(each) for each in session.pushed] == [{0: 2}, {0: 1}]
    assert "not in consume queue range [0-3]" in str(one(0, 4).remark)
    assert "queueId[9] is illegal" in str(one(9, 0).remark)


def test_who_could_not_be_notified_is_named(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    session = member(front, "1")

    def fail(command: RemotingCommand) -> None:
        raise ConnectionFailed("127.0.0.1:50000", "RESET_CONSUMER_CLIENT_OFFSET", "the client is gone")

    monkeypatch.setattr(session, "oneway", fail)
    response = reset(front, 0)
    assert (response.code, response.remark) == (
        1,
        "1 of 1 clients were not notified, such as 127.0.0.1:50000; try again",
    )


def ask_through(
    front: Front, session: FakeSession, header: Request, answer: Callable[[RemotingCommand], RemotingCommand]
) -> tuple[RemotingCommand, RemotingCommand]:
    """The request that reached the client, and the response that came back."""

    async def run() -> tuple[RemotingCommand, RemotingCommand]:
        asking = front.send(to_request(header))
        while not session.called:
            await asyncio.sleep(0)
        command, future = session.called.pop()
        try:
            future.set_result(answer(command))
        except DeadlineExceeded as error:
            future.set_exception(error)
        while not asking.responses:
            await asyncio.sleep(0)
        assert asking.responses[0] is not None
        return command, asking.responses[0]

    return asyncio.run(run())


def test_a_client_is_asked_and_its_answer_handed_back(front: Front) -> None:
    session = member(front, "1")
    header = GetConsumerRunningInfo(consumer_group="g", client_id="1", jstack_enable=False)
    asked, response = ask_through(front, session, header, lambda command: command.reply(body=b"{}"))
    assert (asked.code, asked.ext["clientId"], response.code, response.body) == (307, "1", 0, b"{}")

    def late(command: RemotingCommand) -> RemotingCommand:
        raise DeadlineExceeded("127.0.0.1:1", "GET_CONSUMER_RUNNING_INFO", 10)

    assert ask_through(front, session, header, late)[1].code == 207
    refused = ask_through(front, session, header, lambda command: command.reply(1, remark="no such group"))[1]
    assert (refused.code, refused.remark) == (1, "no such group")
    missing = front.ask(GetConsumerRunningInfo(consumer_group="g", client_id="2"))
    assert (missing.code, missing.remark) == (1, "The Consumer <g> <2> not online")


def test_a_client_consumes_one_message(front: Front) -> None:
    session = member(front, "1")
    front.store.messages[5] = Record("T", 0, 2, b"hello", physical_offset=5)
    found, unknown = (str(OffsetMessageId(bytes(8), at)) for at in (5, 6))
    header = ConsumeMessageDirectly(consumer_group="g", client_id="1", msg_id=found)
    asked, response = ask_through(front, session, header, lambda command: command.reply(body=b"done"))
    record = read_record(asked.body)
    assert record is not None
    assert (record.body, record.physical_offset, response.body) == (b"hello", 5, b"done")
    for wrong in (unknown, "nonsense"):
        asked_for = ConsumeMessageDirectly(consumer_group="g", client_id="1", msg_id=wrong)
        assert front.ask(asked_for).code == 1
