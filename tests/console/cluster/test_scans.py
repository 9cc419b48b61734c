"""Scans are bounded, can be stopped, and say how far they got."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Iterator
from typing import Any, cast

import pytest
from fix_broker import wait_until
from metaq_console.cluster.cluster_questions import ClusterQuestions
from metaq_console.cluster.questions import Questions
from metaq_console.cluster.scan_jobs import KEPT_S, RUNNING_MAX, ScanJobs
from metaq_console.cluster.scans import KEPT_BYTES_MAX, ROUND_MESSAGES, Scan, ScanRequest
from metaq_console.cluster.system import PartitionReader, QueueSystem
from metaq_console.cluster.values import FoundMessage, PassedMessages
from metaq_console.errors import RequestFailed

from metaq.model import OffsetRange
from metaq.net.clock import SYSTEM_CLOCK

ENDLESS = 10_000_000


def message(partition: str, offset: int, data: bytes, attribute: str | None = None) -> FoundMessage:
    return FoundMessage(
        topic="orders",
        partition=partition,
        offset=offset,
        next_offset=offset + 1,
        message_id=str(offset),
        timestamp_ms=offset,
        attribute=attribute,
        keys=(),
        properties=None,
        attempts=None,
        data=data,
    )


class CountedReader(PartitionReader):
    """Reads messages whose values are made from their offsets."""

    def __init__(self, system: CountedSystem, partition: str, position: int) -> None:
        self._system, self._partition, self._next = system, partition, position

    def messages(self) -> Iterator[FoundMessage]:
        while self._next < self._system.ends[self._partition]:
            self._next += 1
            self._system.read.append(self._partition)
            self._system.began.set()
            yield message(self._partition, self._next - 1, self._system.value(self._next - 1))


class CountedSystem:
    """Partitions of so many messages; only what a scan asks."""

    def __init__(self, **ends: int) -> None:
        self.ends = {name.replace("p", "0-"): end for name, end in ends.items()}
        self.read: list[str] = []
        self.began = threading.Event()

    def require_all(self) -> None:
        """No broker is left out."""

    def value(self, offset: int) -> bytes:
        return b"order %d" % offset

    def positions(self, topic: str, start: object) -> dict[str, int]:
        if isinstance(start, int):
            return dict.fromkeys(self.ends, start)
        return dict(self.ends) if start == "latest" else dict.fromkeys(self.ends, 0)

    def newest_positions(self, topic: str, count: int) -> dict[str, int]:
        return {where: max(0, end - count) for where, end in self.ends.items()}

    def start_of_id(self, topic: str, message_id: str) -> dict[str, int]:
        return {"0-0": int(message_id)}

    def indexed(self, topic: str, **wanted: object) -> None:
        return None

    def reader(
        self, topic: str, partition: str, wanted: OffsetRange, *, is_bulk: bool, is_given: bool
    ) -> PartitionReader:
        return CountedReader(self, partition, wanted.start)


class PausedClock:
    """A clock that goes on by a second each time it is looked at."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        self.now_s += 1.0
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def scan(system: CountedSystem, clock: Any = SYSTEM_CLOCK, **request: Any) -> Scan:
    made = Scan(cast(QueueSystem, system), ScanRequest(topic="orders", **request), clock)
    made.run()
    return made


def test_partitions_are_read_in_alternation() -> None:
    system = CountedSystem(p0=ROUND_MESSAGES * 3, p1=10)
    found = scan(system, text="none", read_max=ROUND_MESSAGES + 20)
    assert system.read.count("0-1") == 10
    assert (found.progress.stopped, found.progress.read) == ("read", ROUND_MESSAGES + 20)


class PassingReader(CountedReader):
    """Passes messages without the needles."""

    def search(self, needles: Collection[bytes], end: int, most: int) -> Iterator[FoundMessage | PassedMessages]:
        for one in self.messages():
            if any(needle in one.data for needle in needles):
                yield one
            else:
                yield PassedMessages(one.next_offset, 1, len(one.data))


class PassingSystem(CountedSystem):
    """As the bundled broker's: needles are looked for in whole runs."""

    def reader(
        self, topic: str, partition: str, wanted: OffsetRange, *, is_bulk: bool, is_given: bool
    ) -> PartitionReader:
        return PassingReader(self, partition, wanted.start)


@pytest.mark.parametrize("wanted", [{"text": "order 7"}, {"attribute": "paid"}, {"key": "paid"}, {"text": "消息"}])
def test_passed_messages_count_as_read(wanted: dict[str, Any]) -> None:
    plain, passing = scan(CountedSystem(p0=100, p1=7), **wanted), scan(PassingSystem(p0=100, p1=7), **wanted)
    assert passing.messages() == plain.messages()
    for one in (plain, passing):
        assert (one.progress.read, one.progress.stopped, one.progress.fraction) == (107, "end", 1.0)
        assert one.progress.positions == {"0-0": 100, "0-1": 7}
    assert passing.progress.read_bytes == plain.progress.read_bytes


def test_where_each_message_must_be_looked_at_none_is_passed() -> None:
    for wanted in ({"until_ms": 5, "text": "order"}, {"message_id": "3", "text": "order"}, {}, {"attribute": ""}):
        assert ScanRequest(topic="orders", **wanted).needles == ()  # type: ignore[arg-type]


def test_passing_ends_with_the_limits() -> None:
    found = scan(PassingSystem(p0=ENDLESS), text="none", read_max=500)
    assert (found.progress.stopped, found.progress.read) == ("read", 500)
    found = scan(PassingSystem(p0=ENDLESS), PausedClock(), text="none", seconds=5)
    assert found.progress.stopped == "seconds"


def test_a_later_scan_goes_on_at_the_positions_of_an_earlier_one() -> None:
    system, seen, at = CountedSystem(p0=100, p1=7), list[str](), dict[str, int]()
    while True:
        part = scan(system, at=at, limit=10)
        seen += [f"{one.partition}/{one.offset}" for one in part.messages()]
        at = dict(part.progress.positions)
        if part.progress.stopped == "end":
            break
    assert len(seen) == len(set(seen)) == 107
    assert at == system.ends


def asked(system: CountedSystem, *requests: ScanRequest) -> list[Scan]:
    """The scans of these requests, as clients of one console make them one after the other."""

    async def work() -> list[Scan]:
        cluster = ClusterQuestions(cast(QueueSystem, system), Questions(60), 60)
        return [await cluster.scan(request) for request in requests]

    return asyncio.run(work())


def test_the_newest_messages_are_read_once_for_many_clients() -> None:
    system = CountedSystem(p0=100)
    first, second = asked(system, *[ScanRequest(topic="orders", start="newest", limit=3)] * 2)
    assert [one.offset for one in second.messages()] == [one.offset for one in first.messages()] == [97, 98, 99]
    assert len(system.read) == 3


@pytest.mark.parametrize("more", [{"text": "order"}, {"since_ms": 5}, {"at": {"0-0": 98}}, {"start": "earliest"}])
def test_each_client_has_a_search_of_its_own(more: dict[str, Any]) -> None:
    system = CountedSystem(p0=100)
    request = ScanRequest(topic="orders", **{"start": "newest", "limit": 2} | more)
    first, second = asked(system, request, request)
    assert len(system.read) == 2 * first.progress.read == 2 * second.progress.read


def test_what_is_stored_meanwhile_is_left_for_a_later_scan() -> None:
    system = CountedSystem(p0=5)
    running = Scan(cast(QueueSystem, system), ScanRequest(topic="orders", text="none"))
    began = system.positions
    system.positions = lambda topic, start: began(topic, start)  # type: ignore[method-assign]
    running._begin()
    system.ends["0-0"] = 9
    assert running._read_all() == "end"
    assert running.progress.positions == {"0-0": 5}


def test_the_newest_are_the_last_ones_of_all_partitions() -> None:
    found = scan(CountedSystem(p0=100, p1=98), start="newest", limit=3)
    assert [one.offset for one in found.messages()] == [97, 98, 99]
    assert found.progress.positions == {"0-0": 100, "0-1": 98}


@pytest.mark.parametrize("ends", [{"p0": 20, "p1": 24}, {"p0": 24, "p1": 20}, {"p0": 24, "p1": 24}])
def test_of_the_newest_the_oldest_are_dropped_for_their_bytes(ends: dict[str, int]) -> None:
    system = CountedSystem(**ends)
    system.value = lambda offset: b"x" * (KEPT_BYTES_MAX // 3)  # type: ignore[method-assign]
    found = scan(system, start="newest", limit=10)
    every = sorted((offset, where) for where, end in system.ends.items() for offset in range(end))
    assert [(one.offset, one.partition) for one in found.messages()] == every[-3:]
    assert (found.progress.stopped, found.progress.left, found.progress.positions) == ("bytes", 0, system.ends)


def test_of_the_newest_none_is_older_than_one_that_was_dropped() -> None:
    system = CountedSystem(p0=4, p1=2)
    system.value = lambda offset: b"x" * (KEPT_BYTES_MAX // 3 * offset)  # type: ignore[method-assign]
    found = scan(system, start="newest", limit=10)
    # offset 0 of 0-1 has no bytes, but offset 2 of 0-0 was dropped
    assert [one.offset for one in found.messages()] == [3]
    assert found.progress.stopped == "bytes"


def test_the_newest_are_all_though_older_ones_had_too_many_bytes() -> None:
    system = CountedSystem(p0=6)
    system.value = lambda offset: b"x" * (KEPT_BYTES_MAX if offset < 4 else 1)  # type: ignore[method-assign]
    found = scan(system, start="newest", limit=2)
    assert ([one.offset for one in found.messages()], found.progress.stopped) == ([4, 5], "end")


def test_the_newest_say_that_they_are_not_when_the_time_is_over() -> None:
    found = scan(CountedSystem(p0=200, p1=200), PausedClock(), start="newest", limit=150, seconds=3)
    assert (found.progress.stopped, found.progress.left > 0) == ("seconds", True)


def test_the_seconds_end_it() -> None:
    found = scan(CountedSystem(p0=ENDLESS), PausedClock(), text="none", seconds=5)
    assert found.progress.stopped == "seconds"
    assert 0 < found.progress.read < 1000
    assert 0 < found.progress.fraction < 0.01
    assert found.progress.left == ENDLESS - found.progress.read


def test_the_bytes_of_what_is_kept_end_it_and_nothing_is_skipped() -> None:
    system = CountedSystem(p0=100)
    system.value = lambda offset: b"x" * (KEPT_BYTES_MAX // 3)  # type: ignore[method-assign]
    found = scan(system, limit=100)
    assert (found.progress.stopped, len(found.messages()), found.progress.positions) == ("bytes", 3, {"0-0": 3})


def test_until_ends_a_partition() -> None:
    found = scan(CountedSystem(p0=100), since_ms=10, until_ms=12)
    assert ([one.offset for one in found.messages()], found.progress.stopped) == ([10, 11, 12], "end")


def test_an_unknown_partition_is_said_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"topic 'orders' has no partition '7-7'; it has 0-0, 0-1"):
        scan(CountedSystem(p0=1, p1=1), partition="7-7")


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"limit": 0}, "limit=0: expected 1..1000"),
        ({"seconds": 601}, "seconds=601: expected 1..600"),
        ({"since_ms": 2, "until_ms": 1}, "until_ms=1: expected at least since_ms \\(2\\)"),
    ],
)
def test_wrong_requests(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        ScanRequest(topic="orders", **values)


class TestJobs:
    """Scans in the background."""

    def test_one_is_stopped_and_says_how_far_it_got(self) -> None:
        system = CountedSystem(p0=ENDLESS)
        jobs = ScanJobs(cast(QueueSystem, system))
        job = jobs.start(ScanRequest(topic="orders", text="none", read_max=ENDLESS, seconds=600))
        assert system.began.wait(60)
        assert jobs.get(job.scan_id).scan.progress.running
        jobs.stop(job.scan_id)
        wait_until(lambda: not job.scan.progress.running, "the scan stops")
        assert job.scan.progress.stopped == "cancelled"
        assert 0 < job.scan.progress.read < ENDLESS
        with pytest.raises(RequestFailed) as failed:
            jobs.get(job.scan_id)
        assert failed.value.status == 404

    def test_only_so_many_run(self) -> None:
        jobs = ScanJobs(cast(QueueSystem, CountedSystem(p0=ENDLESS)))
        request = ScanRequest(topic="orders", text="none", read_max=ENDLESS, seconds=600)
        started = [jobs.start(request) for _ in range(RUNNING_MAX)]
        with pytest.raises(RequestFailed) as failed:
            jobs.start(request)
        assert (failed.value.status, failed.value.body.retryable) == (503, True)
        jobs.close()
        wait_until(lambda: not any(job.scan.progress.running for job in started), "all scans stop")

    def test_what_it_found_is_forgotten_after_some_time(self) -> None:
        clock = PausedClock()
        jobs = ScanJobs(cast(QueueSystem, CountedSystem(p0=3)), clock)
        job = jobs.start(ScanRequest(topic="orders"))
        wait_until(lambda: not job.scan.progress.running, "the scan ends")
        assert len(jobs.get(job.scan_id).scan.messages()) == 3
        clock.sleep(KEPT_S)
        assert jobs.each() == []

    def test_an_error_is_in_the_progress(self) -> None:
        jobs = ScanJobs(cast(QueueSystem, CountedSystem(p0=3)))
        job = jobs.start(ScanRequest(topic="orders", partition="9-9"))
        wait_until(lambda: not job.scan.progress.running, "the scan ends")
        assert (job.scan.progress.stopped, job.scan.progress.error) == (
            "failed",
            "topic 'orders' has no partition '9-9'; it has 0-0",
        )
