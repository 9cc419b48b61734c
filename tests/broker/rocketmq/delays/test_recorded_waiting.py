"""What Java clients of 4.9.7 asked a real broker about messages that wait, asked again here.

The sends, transactions, the message that was sent back and the lookups of the recording. Codes, fields and records are
those recorded but for places in the log, queue offsets in system topics, addresses and times. Two things differ on
purpose: a producer is asked about the half message that it sent (4.9.7 stores it anew for each question), and a
delivered message has the waiting one's place in its prepared transaction offset (4.9.7 leaves it 0 after a delay).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

from metaq_broker.log.engine.topics import ServedTopic
from metaq_broker.log.files.files import Files
from metaq_broker.rocketmq.delays.levels import DelayLevels
from metaq_broker.rocketmq.half_messages.half_messages import AskPolicy
from metaq_broker.rocketmq.key_index.key_index import KeyIndex
from metaq_broker.rocketmq.messages.lookups import LookupRequests
from metaq_broker.rocketmq.session import Call
from recorded_differences import OF_FIELDS
from recordings import content, lines
from remoting_brokers import FakeSession, WaitingBroker, play
from waiting import until

from metaq.formats.rocketmq.message_ids import OffsetMessageId
from metaq.formats.rocketmq.properties import parse_properties
from metaq.formats.rocketmq.records import Record, read_record, read_records
from metaq.protocols.remoting.command import RemotingCommand

Line = dict[str, Any]
RECORDED = lines("clients_java497.jsonl")
VARYING = OF_FIELDS["clients_java497.jsonl"].keys()
PLACES = ("msgId", "commitLogOffset", "offsetMsgId", "tranStateTableOffset", "offset")


def recorded(section: str, code: int) -> list[Line]:
    """The requests with a code in one session of the recording."""
    return [
        line
        for line in RECORDED
        if line["section"] == section and line.get("header", {}).get("code") == code and not line["header"]["flag"] & 1
    ]


def answer_to(request: Line) -> Line:
    """The recorded answer to a request."""
    key = request["section"], request["conn"], request["header"]["opaque"]
    for line in RECORDED[RECORDED.index(request) :]:
        header = line.get("header", {})
        is_answer = line["from"] != request["from"] and header.get("flag", 0) & 1
        if is_answer and (line["section"], line["conn"], header["opaque"]) == key:
            return line
    raise AssertionError("it was not answered")


def command_of(line: Line, **changed: object) -> RemotingCommand:
    """A recorded request, with other values of some fields."""
    header = line["header"]
    ext = {**header.get("extFields", {}), **{name: str(value) for name, value in changed.items()}}
    body = line.get("text", "").encode()
    return RemotingCommand(header["code"], ext, body, header["opaque"], header["flag"], version=header["version"])


def same_fields(ours: RemotingCommand, theirs: Line) -> None:
    """Compare an answer with the recorded one."""
    expected = theirs["header"].get("extFields") or {}
    assert ours.code == theirs["header"]["code"], ours.remark
    assert set(ours.ext) == set(expected)
    for name, value in expected.items():
        if name not in (*PLACES, "queueOffset", *VARYING):
            assert ours.ext[name] == value, name


def same_record(ours: Record, theirs: dict[str, Any], *own: str) -> None:
    """Compare a record with the recorded one; properties named in ``own`` have other values."""
    assert ours.body == content(theirs["body"])
    assert (ours.topic, ours.queue_id, ours.flag) == (theirs["topic"], theirs["queueId"], theirs["flag"])
    assert (ours.sys_flag, ours.reconsume_times) == (theirs["sysFlag"], theirs["reconsumeTimes"])
    assert ours.born_timestamp == theirs["bornTimestamp"]
    assert ours.body_crc == theirs["bodyCRC"]
    expected, found = parse_properties(theirs["properties"]), ours.property_map()
    assert set(found) == set(expected)
    assert {name: value for name, value in found.items() if name not in own} == {
        name: value for name, value in expected.items() if name not in own
    }


class Replayed:
    """A broker with sends, lookups and what waits."""

    def __init__(self, broker: WaitingBroker, folder: Path) -> None:
        self.broker = broker
        broker.mount_sends()
        for topic in ("CT", "CX"):
            broker.topics.create(topic, ServedTopic(2, 2))
        self.index = KeyIndex.open(Files(), folder / "rocketmq-keys", dict)
        self.lookups = LookupRequests(broker.store, self.index, dict)
        self.lookups.mount(broker.dispatcher)
        broker.store.when_stored(self.lookups.stored)

    async def ask(self, request: Line, **changed: object) -> RemotingCommand:
        """Ask again what was asked; the answer is the recorded one but for places."""
        ours = await self.broker.ask(command_of(request, **changed))
        same_fields(ours, answer_to(request))
        return ours

    def report(self, request: Line, **changed: object) -> None:
        """Send a oneway again."""
        self.broker.dispatcher.carry_out(Call(command_of(request, **changed), cast("Any", FakeSession())))


def replay(folder: Path, scenario: Callable[[Replayed], Awaitable[None]]) -> None:
    async def run(broker: WaitingBroker) -> None:
        replayed = Replayed(broker, folder)
        await scenario(replayed)
        await replayed.lookups.stop()

    section = "[rocketmq]\nenabled=true\nclusterName=GoldenCluster\nbrokerName=golden-a\n"
    policy, levels = AskPolicy(patience_ms=200, interval_ms=200), DelayLevels.parse("1s 2s")
    play(folder, run, policy, levels, more=section)


def test_transactions(tmp_path: Path) -> None:
    async def scenario(replayed: Replayed) -> None:
        broker, producer = replayed.broker, replayed.broker.producer("PGtx")
        places = []
        for request in recorded("tx", 310):
            ours = await replayed.ask(request)
            places.append((OffsetMessageId.parse(ours.ext["msgId"]).physical_offset, ours.ext["queueOffset"]))
        commit, rollback, unknown, checked = recorded("tx", 37)
        for request, (place, ordinal) in zip((commit, rollback, unknown), places, strict=True):
            replayed.report(request, commitLogOffset=place, tranStateTableOffset=ordinal)
        await broker.bodies_are(b"commit", topic="CX", queue=1)
        await until(lambda: bool(producer.pushed))
        (theirs,), ours = recorded("tx", 39), producer.pushed[0]
        assert (ours.code, ours.is_oneway) == (39, True)
        assert set(ours.ext) == set(theirs["header"]["extFields"])
        for name in ("msgId", "transactionId"):
            assert ours.ext[name] == theirs["header"]["extFields"][name]
        assert (int(ours.ext["commitLogOffset"]), ours.ext["tranStateTableOffset"]) == places[2]
        same_record(read_record(ours.body), theirs["records"][0], *VARYING)
        replayed.report(checked, commitLogOffset=places[2][0], tranStateTableOffset=places[2][1])
        await broker.bodies_are(b"commit", b"unknown", topic="CX", queue=1)
        assert broker.bodies("CX", 0) == []

    replay(tmp_path, scenario)


def test_a_message_that_was_sent_back(tmp_path: Path) -> None:
    async def scenario(replayed: Replayed) -> None:
        (back,) = recorded("push", 36)
        key = back["header"]["extFields"]["originMsgId"]
        (sent,) = (line for line in recorded("producer", 310) if key in line["header"]["extFields"]["i"])
        first = await replayed.ask(sent)
        await replayed.ask(back, offset=OffsetMessageId.parse(first.ext["msgId"]).physical_offset)
        await replayed.broker.bodies_are(b"hello 1", topic="%RETRY%CGpush")
        (theirs,) = (
            record
            for line in RECORDED
            for record in line.get("records", ())
            if line["section"] == "push" and record["topic"] == "%RETRY%CGpush"
        )
        (ours,) = replayed.broker.records("%RETRY%CGpush")
        same_record(ours, theirs, "ORIGIN_MESSAGE_ID")
        assert ours.property_map()["ORIGIN_MESSAGE_ID"] == first.ext["msgId"]
        assert (ours.queue_offset, theirs["preparedTransactionOffset"]) == (0, 0)

    replay(tmp_path, scenario)


def test_lookups(tmp_path: Path) -> None:
    async def scenario(replayed: Replayed) -> None:
        (sent,) = recorded("admin", 310)
        await replayed.ask(sent)
        for request in recorded("admin", 12):
            ours = await replayed.ask(request, endTimestamp=(1 << 63) - 1)
            (record,) = read_records(ours.body)
            same_record(record, answer_to(request)["records"][0])

    replay(tmp_path, scenario)
