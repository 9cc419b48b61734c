"""Answers with bytes changed at random: what comes out is the right messages, or an error of this package, soon.

A broker in memory answers; some of its frames are damaged, cut, repeated or left out on their way.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from examples import rarely

from metaq.backends.rocketmq.groups.offsets import Offsets
from metaq.backends.rocketmq.pool import SessionPool
from metaq.backends.rocketmq.reads.pull_reader import PullSettings, pull_range
from metaq.discovery.name_server import NameServerDirectory
from metaq.errors import DeadlineExceeded, MetaqError
from metaq.formats.rocketmq.records import read_records
from metaq.model import Address, OffsetRange, Partition, TopicPartition
from metaq.net.retry import RetryPolicy
from metaq.net.transport import Stream
from metaq.protocols.remoting.bodies.routes import BrokerData, QueueData, TopicRouteData
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.frames import FrameDecoder, encode
from metaq.protocols.remoting.headers.routes import GetRouteInfoByTopic
from metaq.testing.manual_clock import ManualClock
from metaq.testing.rocketmq_answers import BrokerAnswers, Endpoints
from metaq.testing.rocketmq_store import Store, Topic

ADDRESS = Address("127.0.0.1", 1)
QUEUE = Partition("broker-a", 0)
BODIES = [b"message %d" % number for number in range(200)]
Damage = Callable[[random.Random, bytes], bytes]


def untouched(chance: random.Random, frame: bytes) -> bytes:
    return frame


def flipped(chance: random.Random, frame: bytes) -> bytes:
    """One byte of the frame's front or of a record's is another one."""
    at = chance.randrange(min(len(frame), 600))
    return frame[:at] + bytes([chance.randrange(256)]) + frame[at + 1 :]


def cut(chance: random.Random, frame: bytes) -> bytes:
    return frame[: chance.randrange(len(frame))]


def repeated(chance: random.Random, frame: bytes) -> bytes:
    return frame * 2


def other_number(chance: random.Random, frame: bytes) -> bytes:
    """A digit somewhere in the header is another digit: offsets, codes, opaques."""
    digits = [at for at in range(8, min(len(frame), 330)) if chr(frame[at]).isdigit()]
    at = chance.choice(digits)
    return frame[:at] + b"%d" % chance.randrange(10) + frame[at + 1 :]


def noise(chance: random.Random, frame: bytes) -> bytes:
    return chance.randbytes(chance.randrange(1, 200))


DAMAGES: list[Damage] = [*[untouched] * 40, flipped, cut, repeated, other_number, noise]


class DamagedServer:
    """Name server and broker in one, over streams in memory. ``answered_max`` bounds how long a client may go on."""

    def __init__(self, seed: int) -> None:
        self.chance, self.clock = random.Random(seed), ManualClock()
        store = Store("127.0.0.1", lambda: 1000)
        store.topics["orders"] = Topic(1, 1)
        store.append("orders", 0, [(body, {}, 0) for body in BODIES], port=1, born_ms=1, born=("127.0.0.1", 1))
        self.broker = BrokerAnswers(store, "c")
        self.answered = 0

    def connect_tcp(self, address: Address, timeout_s: float) -> Stream:
        return DamagedStream(self)

    def answer(self, command: RemotingCommand) -> bytes:
        self.answered += 1
        assert self.answered < 5000, "this client does not come to an end"
        if command.code == GetRouteInfoByTopic.CODE:
            queues = QueueData(broker_name="broker-a", read_queue_nums=1, write_queue_nums=1, perm=6)
            route = TopicRouteData(
                queue_datas=(queues,),
                broker_datas=(BrokerData(broker_name="broker-a", broker_addrs={0: str(ADDRESS)}),),
            )
            return encode(command.reply(body=route.to_json()))
        frame = encode(self.broker.answer(command, Endpoints(("127.0.0.1", 9), 1)))
        return self.chance.choice(DAMAGES)(self.chance, frame)


class DamagedStream:
    """One connection."""

    def __init__(self, server: DamagedServer) -> None:
        self._server, self._decoder, self._incoming = server, FrameDecoder(), bytearray()

    def send(self, data: bytes, timeout_s: float, *, more: bool = False) -> None:
        for command in self._decoder.receive(data):
            self._incoming += self._server.answer(command)

    def recv_into(self, buffer: memoryview, timeout_s: float) -> int:
        if not self._incoming:
            self._server.clock.advance(timeout_s)
            raise DeadlineExceeded(ADDRESS, "receive", timeout_s)
        count = min(len(buffer), len(self._incoming), 1000)
        buffer[:count] = self._incoming[:count]
        del self._incoming[:count]
        return count

    def recv(self, bytes_max: int, timeout_s: float) -> bytes:
        buffer = bytearray(bytes_max)
        return bytes(buffer[: self.recv_into(memoryview(buffer), timeout_s)])

    def readable(self) -> bool:
        return bool(self._incoming)

    def close(self) -> None:
        self._incoming.clear()


@pytest.mark.parametrize("block", [*range(5), *rarely(*range(5, 20))])
def test_damaged_answers(block: int) -> None:
    results = [_read_all(seed) for seed in range(block * 50, block * 50 + 50)]
    assert all("\n" not in result for result in results)
    assert 5 < results.count("all") < 45


def _read_all(seed: int) -> str:
    """Return ``all``, or the error; checked is that what was read is a front of the queue, each message once."""
    server = DamagedServer(seed)
    pool = SessionPool(transport=server, clock=server.clock)
    directory = NameServerDirectory([ADDRESS], pool)
    settings = PullSettings(wait_s=5.0, policy=RetryPolicy(5, 0.1), in_flight=4)
    position, read = 0, []
    try:
        Offsets(pool, directory, settings.policy).ranges([TopicPartition("orders", QUEUE)])
        for run in pull_range(pool, directory, "orders", QUEUE, OffsetRange(0, len(BODIES)), settings):
            assert (run.start, run.records) == (position, run.end - run.start)
            position = run.end
            read += [record.queue_offset for record in read_records(run.data, check_crc=False)]
    except MetaqError as error:
        return str(error)
    finally:
        pool.close()
        assert read == list(range(position))
    return "all"
