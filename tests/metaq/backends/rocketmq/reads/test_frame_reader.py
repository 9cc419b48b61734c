"""The reader of frames against a scripted broker: whatever is answered, the range comes once and in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from rocketmq_clients import PullBench, on_scripted_cluster

from metaq.backends.rocketmq.errors import OffsetOutOfRange, RequestRefused
from metaq.backends.rocketmq.reads.frame_pulls import FrameQueue, measure_frames
from metaq.backends.rocketmq.reads.frame_reader import FAULTS_MAX, PULLED_AFTER_FAULT, read_range
from metaq.backends.rocketmq.reads.pulls import Subscription
from metaq.discovery.name_server import NameServerDirectory
from metaq.formats.frames import encode_frame, walk
from metaq.formats.rocketmq.records import read_records
from metaq.formats.stored_records import FrameRun
from metaq.model import Address, OffsetRange, Partition
from metaq.protocols.remoting.announcement import MetaQBroker
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers.pulls import PullFrames, PullFramesResponse, PullMessage
from metaq.testing.rocketmq_server import ScriptedCluster

FRAMES, PULL = PullFrames.CODE, PullMessage.CODE
QUEUE = Partition("broker-a", 0)
MESSAGES = [b"message %d " % number + b"x" * (number % 97) for number in range(3000)]
PHYSICAL = 5 << 40
Change = Callable[[PullFrames, RemotingCommand], RemotingCommand]


class Bundled(NameServerDirectory):
    """Says of every broker that it is the bundled one."""

    def has_moved(self, broker_name: str, address: Address) -> bool:
        return False

    def metaq_broker(self, address: Address) -> MetaQBroker | None:
        return MetaQBroker(0, Address("h", 1))


class Bench(PullBench):
    """A cluster with messages in the only queue of ``orders``, at a broker that gives frames, too."""

    def __init__(self, cluster: ScriptedCluster) -> None:
        super().__init__(cluster, MESSAGES)
        self.frames = [encode_frame(number, 0, body) for number, body in enumerate(MESSAGES)]
        self.change: Change = lambda asked, answer: answer
        self.broker.tamper = self._tamper
        self.bundled = Bundled(cluster.name_servers, self.pool)
        self.came: list[tuple[int, int, bool]] = []

    def _tamper(self, request: RemotingCommand, answer: RemotingCommand) -> RemotingCommand:
        if request.code != FRAMES:
            return answer
        asked = PullFrames.from_ext(request.ext)
        return self.change(asked, replace(self._answer(asked), opaque=answer.opaque, flag=answer.flag))

    def _answer(self, asked: PullFrames) -> RemotingCommand:
        first, count, size = asked.queue_offset, 0, 0
        for frame in self.frames[first : first + asked.max_msg_nums]:
            if count and size + len(frame) > asked.max_msg_bytes:
                break
            count, size = count + 1, size + len(frame)
        at = sum(map(len, self.frames[:first]))
        fields = PullFramesResponse(
            next_begin_offset=first + count,
            min_offset=0,
            max_offset=len(MESSAGES),
            begin_offset=first,
            physical_offset=PHYSICAL + at,
            store_host="7f00000100002a9f",
            store_timestamp=77,
        )
        return RemotingCommand(0, fields.ext(), b"".join(self.frames[first : first + count]))

    def read(self, start: int = 0, end: int = len(MESSAGES), pulled_until: int = 0, **changes: object) -> list[bytes]:
        """The bodies of a range."""
        settings = replace(self.settings, **changes)  # type: ignore[arg-type]
        found: list[bytes] = []
        self.came, position = [], start
        runs = read_range(
            self.pool, self.bundled, "orders", QUEUE, OffsetRange(start, end), settings, pulled_until=pulled_until
        )
        for run in runs:
            assert run.start == position
            position = run.end
            self.came.append((run.start, run.end, isinstance(run, FrameRun)))
            if isinstance(run, FrameRun):
                frames = list(walk(run.data))
                assert run.physical_offset == PHYSICAL + sum(map(len, self.frames[: run.start]))
                assert (run.known_ms, run.store_host.hex()) == (77, "7f00000100002a9f")
                found += [each.body for each in frames]
            else:
                found += [each.body for each in read_records(run.data)]
            assert len(found) == position - start
        return found

    def offsets(self, code: int) -> list[int]:
        return [int(each.ext["queueOffset"]) for each in self.broker.requests if each.code == code]

    def pulled(self) -> set[int]:
        """Which messages came as records."""
        return {each for start, end, is_frames in self.came if not is_frames for each in range(start, end)}


@pytest.fixture
def bench() -> Iterator[Bench]:
    with on_scripted_cluster(Bench) as bench:
        yield bench


@pytest.mark.parametrize(("start", "end"), [(0, 3000), (0, 1), (17, 18), (255, 257), (2999, 3000), (5, 5), (9, 5)])
@pytest.mark.parametrize("in_flight", [1, 16])
def test_a_range_is_read_once_and_in_order(bench: Bench, start: int, end: int, in_flight: int) -> None:
    assert bench.read(start, end, in_flight=in_flight) == MESSAGES[start:end]
    assert bench.offsets(PULL) == []
    asked = bench.offsets(FRAMES)
    assert asked == sorted(set(asked)), "nothing is asked for twice"
    assert bench.pool.idle_count(bench.broker.address()) == (1 if start < end else 0)


def test_of_a_broker_that_does_not_announce_it_no_frames_are_asked(bench: Bench) -> None:
    bench.bundled = bench.directory  # type: ignore[assignment]
    assert bench.read() == MESSAGES
    assert bench.offsets(FRAMES) == []
    assert bench.offsets(PULL) == list(range(0, 3000, 32))


def test_a_condition_in_sql_is_for_the_broker(bench: Bench) -> None:
    with pytest.raises(RequestRefused):
        bench.read(subscription=Subscription("a > 1", "SQL92"))
    assert bench.offsets(FRAMES) == []


def test_what_is_to_be_pulled_is_pulled(bench: Bench) -> None:
    assert bench.read(10, 200, pulled_until=50) == MESSAGES[10:200]
    assert bench.pulled() == set(range(10, 50))


def test_a_broker_that_does_not_know_the_request_is_asked_once(bench: Bench) -> None:
    bench.change = lambda asked, answer: RemotingCommand(3, {}, opaque=answer.opaque, flag=answer.flag)
    assert bench.read(in_flight=1) == MESSAGES
    assert len(bench.offsets(FRAMES)) == 1
    assert bench.pulled() == set(range(3000))


def changed(**fields: object) -> Change:
    return lambda asked, answer: replace(answer, ext={**answer.ext, **{k: str(v) for k, v in fields.items()}})


ODD: dict[str, Change] = {
    "busy": lambda asked, answer: replace(answer, code=2, ext={}, body=b"", remark="busy"),
    "nothing yet": lambda asked, answer: replace(answer, code=19, ext={}, body=b""),
    "moved": lambda asked, answer: replace(answer, code=21, ext={}, body=b""),
    "further on": changed(beginOffset=1500, nextBeginOffset=1501),
    "before": changed(beginOffset=0, nextBeginOffset=1),
    "no messages": lambda asked, answer: changed(nextBeginOffset=asked.queue_offset)(asked, answer),
    "fewer frames": lambda asked, answer: replace(answer, body=answer.body[:25]),
    "more frames": lambda asked, answer: replace(answer, body=answer.body + encode_frame(0, 0, b"more")),
    "a cut frame": lambda asked, answer: replace(answer, body=answer.body[:-1]),
    "a length below 0": lambda asked, answer: replace(answer, body=b"\xff" * 4 + answer.body[4:]),
    "a field is missing": lambda asked, answer: replace(answer, ext={"beginOffset": "5"}),
    "no host": changed(storeHost="7f"),
    "no digits": changed(storeHost="host"),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_answers_are_reported_by_pulls(bench: Bench, name: str) -> None:
    def once(asked: PullFrames, answer: RemotingCommand) -> RemotingCommand:
        if asked.queue_offset == 0:
            return answer
        bench.change = lambda asked, answer: answer
        return ODD[name](asked, answer)

    bench.change = once
    assert bench.read(in_flight=1) == MESSAGES
    assert len(bench.pulled()) == PULLED_AFTER_FAULT


@pytest.mark.parametrize("name", ODD)
def test_after_several_odd_answers_in_a_row_all_is_pulled(bench: Bench, name: str) -> None:
    bench.change = lambda asked, answer: ODD[name](asked, answer) if asked.queue_offset > 0 else answer
    assert bench.read(1, in_flight=1) == MESSAGES[1:]
    assert bench.pulled() == set(range(1, 3000))
    assert len(bench.offsets(FRAMES)) == FAULTS_MAX + 1


def test_a_lost_connection_is_reported_by_pulls(bench: Bench) -> None:
    def lose(asked: PullFrames, answer: RemotingCommand) -> RemotingCommand:
        if asked.queue_offset == 0:
            bench.broker.disconnect(FRAMES)
        return answer

    bench.change = lose
    assert bench.read(in_flight=1) == MESSAGES
    assert len(bench.pulled()) == PULLED_AFTER_FAULT


def test_what_retention_removed_is_said_by_a_pull(bench: Bench) -> None:
    bench.cluster.remove_below("orders", QUEUE, 100)
    bench.change = lambda asked, answer: (
        replace(answer, code=21, ext={}, body=b"") if asked.queue_offset < 100 else answer
    )
    with pytest.raises(OffsetOutOfRange) as moved:
        bench.read()
    assert (moved.value.asked, moved.value.first) == (0, 100)
    assert bench.read(100) == MESSAGES[100:]


def test_frames_are_counted_up_to_the_first_that_is_not_whole() -> None:
    data = b"".join(encode_frame(number, 0, bytes(number)) for number in range(5))
    assert measure_frames(data, 10) == (5, len(data))
    assert measure_frames(data, 3) == (3, 63)
    assert measure_frames(data[:-1], 10) == (4, 86)
    assert measure_frames(data[:19], 10) == (0, 0)
    assert measure_frames(b"\xff" * 100, 10) == (0, 0)


def test_the_request_says_what_is_wanted() -> None:
    command = FrameQueue("orders", "broker-a", 3, "g").pull(7, 100, 5000)
    assert command.code == 31002
    assert PullFrames.from_ext(command.ext) == PullFrames(
        consumer_group="g",
        topic="orders",
        queue_id=3,
        queue_offset=7,
        max_msg_nums=100,
        max_msg_bytes=5000,
    )
    assert command.ext["bname"] == "broker-a"
