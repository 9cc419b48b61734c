"""Programs that use MetaQ's own Java client, against this project's broker, found in ZooKeeper.

Runs only where ``METAQ_JAVA_LIB`` names a folder with the client's jars (docs/testing.md).
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from fix_broker import RunningBroker
from fix_spark import named
from fix_zookeeper import Brokers, ZooKeeperRoot

from metaq.backends.metaq.pool import SessionPool
from metaq.client.consumer import Consumer
from metaq.discovery.fixed import FixedDirectory
from metaq.formats.frames import Frame

TOPIC = "java"
DEADLINE_S = 180
MANY = 200_000
"""So many that the broker loads its compiled loops on the way, and takes most of them with these."""

LARGE = 1 << 20
"""A body that makes the frame longer than the ``maxTransferSize`` of the broker."""

Program = Callable[[str, int], list[list[str]]]


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The class path of the programs."""
    jars, folder = named("METAQ_JAVA_LIB"), tmp_path_factory.mktemp("classes")
    source = Path(__file__).with_name("JavaClient.java")
    subprocess.run(["javac", "-cp", f"{jars}/*", "-d", str(folder), str(source)], check=True, timeout=DEADLINE_S)
    return f"{jars}/*:{folder}"


@pytest.fixture
def broker(classes: str, brokers: Brokers) -> RunningBroker:
    """A broker with many small segments, and a topic of two partitions."""
    return brokers.start("java", f"[topic={TOPIC}]\n")


@pytest.fixture
def program(classes: str, broker: RunningBroker, zookeeper: ZooKeeperRoot, tmp_path: Path) -> Program:
    """Runs the Java program with what it is to do and a number of messages; returns the fields of its lines."""

    def run(what: str, count: int) -> list[list[str]]:
        where = zookeeper.server.address, zookeeper.root, TOPIC
        kept = f"-Dmeta.recover.path={tmp_path / 'recover'}"  # by the client, for later
        command = ["java", kept, "-cp", classes, "JavaClient", *where, what, str(count)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
        assert ended.returncode == 0, ended.stderr
        return [line.split("\t") for line in ended.stdout.splitlines()]

    return run


@pytest.fixture
def stored(broker: RunningBroker) -> Iterator[Callable[[], dict[str, list[Frame]]]]:
    """Reads all messages with this project's client, by partition, as far as there are any."""
    with closing(SessionPool()) as pool:
        directory = FixedDirectory([broker.address], pool)
        consumer = Consumer(directory, pool)
        yield lambda: {
            str(partition): list(consumer.messages(TOPIC, partition, 0)) for partition in directory.partitions(TOPIC)
        }


def body(number: int) -> str:
    """What the program sends as message ``number``."""
    return f"{number:08}" + "".join(chr(ord("a") + more % 26) for more in range(number % 180, 0, -1))


def test_pipelined_puts_are_stored_once_where_the_replies_say(
    program: Program, stored: Callable[[], dict[str, list[Frame]]]
) -> None:
    reported = program("produce", MANY)
    assert {fields[0] for fields in reported} == {"sent"}
    ((partition, frames),) = stored().items()
    assert [frame.message.payload.decode() for frame in frames] == [body(number) for number in range(MANY)]
    attributes = {number: frame.message.attribute for number, frame in enumerate(frames) if frame.message.attribute}
    assert attributes == {number: f"type{number}" for number in range(7, MANY, 100)}
    places = {int(number): (where, int(offset), int(name)) for _, number, where, offset, name in reported}
    assert places == {n: (partition, frame.offset, frame.message_id) for n, frame in enumerate(frames)}


def test_a_topic_browser_and_a_consumer_see_what_was_sent(program: Program) -> None:
    program("produce", 500)
    expected = [(f"type{n}" if n % 100 == 7 else "", body(n)) for n in range(500)]
    assert [tuple(fields[2:]) for fields in program("browse", 0)] == expected
    assert [tuple(fields[2:]) for fields in program("consume", 500)] == expected


def test_a_consumer_and_a_browser_get_past_a_message_larger_than_a_reply(
    program: Program, broker: RunningBroker
) -> None:
    program("produce", 10)
    with closing(broker.client()) as client:
        assert client.result(b"put %s 0 %d 0 1\r\n%b" % (TOPIC.encode(), LARGE, b"L" * LARGE))[0] == 200
    program("produce", 10)
    expected = [body(n) for n in range(10)]
    assert [fields[3] for fields in program("browse-large", 0)] == [*expected, "L" * LARGE, *expected]
    # A consumer that asks for so much is given it at once.
    assert [fields[3] for fields in program("consume-large", 21)] == [*expected, "L" * LARGE, *expected]
    # One that has to ask for more first keeps the message for later by itself, and goes on.
    assert [fields[3] for fields in program("consume", 20)] == [*expected, *expected]


def test_a_browser_goes_on_with_the_next_partition_behind_damaged_bytes(
    program: Program, broker: RunningBroker, brokers: Brokers
) -> None:
    with closing(broker.client()) as client:
        for index in (0, 1):
            for number in range(9):
                text = b"%08d" % number
                assert client.result(b"put %s %d 8 0 1\r\n%b" % (TOPIC.encode(), index, text))[0] == 200
    assert broker.stop() == 0
    segment = broker.data / f"{TOPIC}-0" / f"{0:020d}.meta"
    content = bytearray(segment.read_bytes())
    content[4 * 28 + 22] ^= 1
    segment.write_bytes(content)
    brokers.start("java", f"[topic={TOPIC}]\n")
    everything = [f"{number:08}" for number in range(9)]
    assert [fields[3] for fields in program("browse", 0)] == [*everything[:4], *everything]
    assert [fields[3] for fields in program("consume", 17)].count("00000008") == 2


def test_what_is_rolled_back_is_not_there(program: Program, stored: Callable[[], dict[str, list[Frame]]]) -> None:
    reported = program("transact", 40)
    assert {fields[0] for fields in reported} == {"committed"}
    committed = sorted(body(int(number)) for fields in reported for number in fields[1:])
    found = [frame.message.payload.decode() for frames in stored().values() for frame in frames]
    assert sorted(found) == committed
