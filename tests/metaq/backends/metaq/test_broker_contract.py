"""What a client may expect of a broker: the one in memory and the real one pass the same tests.

This keeps the fake honest: every other client test may then rely on it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fix_broker import RunningBroker, launch_in
from fix_client import ADDRESS, TIMEOUTS, memory_session

from metaq.backends.metaq.boundaries import frame_boundary
from metaq.backends.metaq.fetch import AtEnd, Moved, Run, fetch
from metaq.backends.metaq.positions import incarnation, offset_of_message, ordinal_at
from metaq.backends.metaq.puts import encode_block, put, put_batch
from metaq.backends.metaq.session import Session
from metaq.discovery.stats import AcceptedTopics, parse_broker, parse_incarnations, parse_offsets, parse_topics
from metaq.errors import BrokerError, ConnectionFailed
from metaq.formats.frames import walk
from metaq.model import Message, OffsetRange, PartitionState
from metaq.protocols.text.commands import Get, GetOffset, Put, PutBatch, Quit, Reply, Result, Stats, Version
from metaq.testing.memory import MemoryBroker

SEGMENT_BYTES, TRANSFER_BYTES = 4096, 3000
TOPICS = [f"t{number}" for number in range(100)]

TOPICS_INI = "[zookeeper]\nzk.zkEnable=false\n" + "".join(f"[topic={topic}]\nnumPartitions=2\n" for topic in TOPICS)

UNUSED_TOPICS = iter(TOPICS)


@pytest.fixture
def topic() -> str:
    """A topic with two partitions that nobody has written to."""
    return next(UNUSED_TOPICS)


@pytest.fixture(scope="module")
def real_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    folder = tmp_path_factory.mktemp("contract")
    broker = launch_in(folder, TOPICS_INI, brokerId=5, maxSegmentSize=SEGMENT_BYTES, maxTransferSize=TRANSFER_BYTES)
    yield broker
    broker.end()


@pytest.fixture(params=["memory", pytest.param("real", marks=pytest.mark.process)])
def session(request: pytest.FixtureRequest, topic: str) -> Iterator[Session]:
    """A session to broker 5: small segments, small replies."""
    if request.param == "memory":
        topics = dict.fromkeys(TOPICS, 2)
        yield memory_session(
            MemoryBroker(topics, broker_id=5, segment_bytes_max=SEGMENT_BYTES, transfer_bytes_max=TRANSFER_BYTES)
        )
        return
    session = Session.connect(request.getfixturevalue("real_broker").address, TIMEOUTS)
    yield session
    session.close()


def readable(session: Session, topic: str) -> dict[int, OffsetRange]:
    """The partitions of ``topic`` that hold anything."""
    offsets = parse_offsets(session.ask(Stats("offsets", 0)))
    return {index: available for (stored, index), available in offsets.items() if stored == topic and len(available)}


def code_of(reply: Reply) -> int | str:
    return reply.code if isinstance(reply, Result) else "value"


def test_offsets_of_puts_are_bytes(session: Session, topic: str) -> None:
    assert [put(session, topic, 0, Message(b"x" * size)).offset for size in (0, 5, 100)] == [0, 20, 45]
    assert put(session, topic, 1, Message(b"y", "attribute")).offset == 0
    assert put_batch(session, topic, 0, *encode_block([Message(b"1"), Message(b"2")])).offset == 165
    frames = list(walk(bytes(_fetch_all(session, topic))))
    assert [frame.body for frame in frames] == [b"", b"xxxxx", b"x" * 100, b"1", b"2"]
    assert [frame.offset for frame in frames] == [0, 20, 45, 165, 186]


def _fetch_all(session: Session, topic: str) -> bytearray:
    data = bytearray()
    while isinstance(run := fetch(session, topic, 0, len(data), 1 << 20), Run):
        data += run.data
    return data


def test_a_get_is_a_raw_slice_that_is_capped_and_stays_in_its_segment(session: Session, topic: str) -> None:
    for _ in range(5):
        put(session, topic, 0, Message(b"x" * 980))  # frames of 1000 bytes: a segment holds five
    put(session, topic, 0, Message(b"z" * 80))
    lengths = {}
    for offset, wanted in [(0, 10), (7, 30), (0, 1 << 20), (4000, 1 << 20), (4990, 1 << 20), (5000, 1 << 20)]:
        run = fetch(session, topic, 0, offset, wanted)
        assert isinstance(run, Run)
        lengths[offset, wanted] = len(run.data)
    assert list(lengths.values()) == [10, 30, TRANSFER_BYTES, 1000, 10, 100]


def test_outside_of_what_there_is(session: Session, topic: str) -> None:
    put(session, topic, 0, Message(b"x" * 80))
    assert isinstance(fetch(session, topic, 0, 100, 10), AtEnd)
    assert isinstance(fetch(session, topic, 1, 0, 10), AtEnd)
    assert isinstance(fetch(session, "nosuch", 0, 0, 10), AtEnd)
    assert fetch(session, topic, 0, -1, 10) == Moved(0)
    assert fetch(session, topic, 0, 2**63 - 1, 10) == Moved(100)


@pytest.mark.parametrize("max_bytes", [0, -5])
def test_a_get_of_nothing_is_a_bad_request(session: Session, topic: str, max_bytes: int) -> None:
    put(session, topic, 0, Message(b"x"))
    assert code_of(session.call(Get(topic, "g", 0, 0, max_bytes, 0))) == 400


def test_offset_gives_segment_starts_and_boundaries(session: Session, topic: str) -> None:
    for _ in range(7):
        put(session, topic, 0, Message(b"x" * 980))
    asked = [-3, 0, 2500, 5000, 6999, 7000, 9000]
    segments = [int(session.ask(GetOffset(topic, "g", 0, offset, 0))) for offset in asked]
    assert segments == [0, 0, 0, 5000, 5000, 7000, 7000]
    boundaries = [frame_boundary(session, topic, 0, offset) for offset in asked]
    assert boundaries == [0, 0, 2000, 5000, 6000, 7000, 7000]
    assert code_of(session.call(GetOffset(topic, "g", 1, 0, 0))) == 404


def test_messages_are_counted(session: Session, topic: str) -> None:
    offsets = [put(session, topic, 0, Message(b"x" * (300 * number % 980))).offset for number in range(12)]
    offsets.append(put_batch(session, topic, 0, *encode_block([Message(b"y" * 50)] * 3)).offset)
    end = readable(session, topic)[0].end
    first = ordinal_at(session, topic, 0, 0)
    assert [ordinal_at(session, topic, 0, at) - first for at in offsets] == list(range(13))
    assert [ordinal_at(session, topic, 0, at) - first for at in (-5, offsets[3] + 1, end - 1, end, end + 9)] == [
        0,
        3,
        14,
        15,
        15,
    ]
    assert [offset_of_message(session, topic, 0, first + number) for number in range(13)] == offsets
    asked = (first - 9, first + 14, first + 15, first + 99, 2**63 - 1)
    assert [offset_of_message(session, topic, 0, number) for number in asked] == [0, end - 70, end, end, end]
    for mode in ("ordinal", "message", "incarnation"):
        assert code_of(session.call(GetOffset(topic, "g", 1, 0, 0, mode))) == 404  # type: ignore[arg-type]


def test_each_partition_has_an_incarnation_of_its_own(session: Session, topic: str) -> None:
    for index in (0, 1):
        put(session, topic, index, Message(b"x" * 80))
    reported = [incarnation(session, topic, index) for index in (0, 1)]
    put(session, topic, 0, Message(b"x"))
    available = parse_incarnations(session.ask(Stats("incarnations", 0)))
    assert [available[topic, index] for index in (0, 1)] == [
        PartitionState(OffsetRange(0, end), reported[index]) for index, end in enumerate((121, 100))
    ]
    assert None not in reported
    assert len(set(reported)) == 2


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (Put("nosuch", 0, b"x", 0, 0), 500),
        (Put("t", 2, b"x", 0, 0), 500),
        (Put("t", -2, b"x", 0, 0), 500),
        (Put("t", 0, b"x", 0, 0, checksum=4711), 500),
        (Put("t", 0, b"x", 0, 0, checksum=-1), 200),
        (Put("t", 0, b"x", 0, 0, checksum=None), 200),
        (PutBatch("t", 0, encode_block([Message(b"x")])[0], 2, 0), 500),
        (PutBatch("nosuch", 0, encode_block([Message(b"x")])[0], 1, 0), 500),
        (PutBatch("t", 2, encode_block([Message(b"x")])[0], 1, 0), 500),
    ],
)
def test_what_is_taken_and_what_is_refused(session: Session, topic: str, command: Put | PutBatch, code: int) -> None:
    if command.topic == "t":
        command = command._replace(topic=topic)
    assert code_of(session.call(command)) == code
    assert readable(session, topic) == ({0: OffsetRange(0, 21)} if code == 200 else {})


def test_a_refusal_says_why(session: Session, topic: str) -> None:
    with pytest.raises(BrokerError, match="The server do not accept topic nosuch"):
        put(session, "nosuch", 0, Message(b"x"))
    with pytest.raises(BrokerError, match="wrong partition 2"):
        put(session, topic, 2, Message(b"x"))


def test_what_the_directory_asks(session: Session, topic: str) -> None:
    put(session, topic, 1, Message(b"x" * 80))
    assert parse_broker(session.ask(Stats("", 0))).broker_id == 5
    assert sorted(parse_topics(session.ask(Stats("topics", 0)))) == sorted(TOPICS)
    assert readable(session, topic) == {1: OffsetRange(0, 100)}
    settings = AcceptedTopics(session.ask(Stats("config", 0)))
    assert [settings.partition_count(name) for name in (topic, "other")] == [2, 0]
    assert session.ask(Stats("nosuch", 0)).startswith("STATS\r\nnosuch\r\nresultCode 1\r\n")


def test_extensions_are_announced(session: Session, topic: str) -> None:
    assert {"boundary", "mput", "ordinal", "incarnation"} <= session.extensions


def test_pipelined_requests_are_all_answered(session: Session, topic: str) -> None:
    commands = [Version(0), Get(topic, "g", 0, 0, 10, 0), Put(topic, 0, b"x", 0, 0), Stats("", 0)] * 10
    opaques = [session.post(command) for command in commands]
    replies = [session.wait(opaque) for opaque in reversed(opaques)]
    assert [reply.opaque for reply in replies] == list(reversed(opaques))
    assert session.quiet


@pytest.mark.parametrize("command", [Quit(), None])
def test_a_connection_that_the_broker_ends_is_lost(session: Session, topic: str, command: Quit | None) -> None:
    put(session, topic, 0, Message(b"x"))
    if command:
        session.send(command)
    else:
        session._stream.send(b"nonsense\r\n", 5)
    with pytest.raises(ConnectionFailed, match=r"version failed"):
        session.call(Version(0))


def test_the_address_of_the_fake_is_never_dialled() -> None:
    session = memory_session(MemoryBroker({}))
    assert session.address == ADDRESS
    assert session.ask(Version(0)).startswith("1.4.6")
