"""Which partition comes next, and how much of each is in memory: no partition waits for all that another one has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from metaq.backends.metaq.fetch import Run
from metaq.backends.metaq.polls import PartitionRequest, Polled
from metaq.backends.rocketmq.reads.pulls import PulledRecords
from metaq.client.groups.deliveries import Delivery
from metaq.client.groups.in_hand import Span
from metaq.client.groups.owned import FULL_PARTITIONS_MAX
from metaq.client.groups.partition import OwnedPartition, ReadSettings
from metaq.client.groups.round_robin import SHARE
from metaq.client.groups.state import ConsumerState
from metaq.client.rocketmq.groups.queue import OwnedQueue, QueueAnswer, QueueSettings
from metaq.discovery.zk_layout import GroupOffset
from metaq.formats.frames import encode_frame
from metaq.model import Partition, TopicPartition

State = ConsumerState[Delivery, PartitionRequest, Polled]
FRAME = encode_frame(0, 0, b"x")


def place(index: int) -> TopicPartition:
    return TopicPartition("t", Partition(0, index))


def state_of(partitions: int, fetch_bytes: int = 1 << 20) -> State:
    state: State = ConsumerState(retry_max_s=1.0, max_attempts=6, dedupe=0)
    read = ReadSettings("g", fetch_bytes)
    state.add([OwnedPartition(place(index), GroupOffset(0), 1, read, state) for index in range(partitions)])
    state.resume()
    return state


def serve(state: State, busy: Callable[[int], bool] = lambda index: True, limit: int = 64) -> list[PartitionRequest]:
    """Answer what is due, each request with as many whole messages as it asks for."""
    with state.lock:
        asked = state.requests(0, 0.0, limit)
    for partition, request in asked:
        frames = max(1, request.max_bytes // len(FRAME)) if busy(request.index) else 1
        state.fetched([(partition, request)], [Run(request.offset, FRAME * frames)], 0.0)
    return [request for _, request in asked]


def one_by_one(state: State) -> list[Delivery]:
    with state.lock:
        found = state.take(0.0)
    return [] if found is None else [found]


def many(state: State) -> list[Delivery]:
    return state.take_many(1000, 0.0)


def streamed(state: State) -> list[Delivery]:
    """As an iteration takes messages: one, and those that it may take behind it without a lock."""
    found = one_by_one(state)
    with state.lock:
        block = state.stream(found[0]) if found else None
    if block is None:
        return found
    found += block.messages[block.taken : block.stream_end]
    block.taken = block.stream_end
    state.end_stream(found[0].where)
    return found


def by_workers(state: State) -> list[Delivery]:
    """As a worker takes messages: of a partition that is its own until it has handled so many."""
    with state.lock:
        first = state.take(0.0, free_only=True)
    if first is None:
        return []
    found = [first]
    with state.lock:
        while len(found) < 64 and (one := state.take_more(first, 0.0)) is not None:
            found.append(one)
    state.handled(first)
    return found


def test_a_worker_of_an_earlier_assignment_leaves_the_partition_to_the_other() -> None:
    state, read = state_of(1), ReadSettings("g")
    serve(state)
    with state.lock:
        first = state.take(0.0, free_only=True)
        assert first is not None
        state.remove([place(0)])
        state.add([OwnedPartition(place(0), GroupOffset(0), 2, read, state)])
    serve(state)
    with state.lock:
        second = state.take(0.0, free_only=True)
        assert second is not None
        assert state.take_more(first, 0.0) is None
        state.handled(first)
        assert state.take(0.0, free_only=True) is None
        state.handled(second)
        assert state.take(0.0, free_only=True) is not None


@pytest.mark.parametrize("take", [one_by_one, many, streamed, by_workers])
@pytest.mark.parametrize("partitions", [2, 7])
def test_the_longest_wait_is_a_share_of_each_other_partition(
    take: Callable[[State], list[Delivery]], partitions: int
) -> None:
    state, waited, longest = state_of(partitions), dict.fromkeys(range(partitions), 0), 0
    for _ in range(20):
        serve(state)
        for _ in range(60):
            found = take(state)
            assert found, "there is always something"
            state.acknowledge_spans([Span(found[0], found[-1], len(found))])
            index = found[0].partition.index
            longest = max(longest, waited[index])
            for other in waited:
                waited[other] = 0 if other == index else waited[other] + len(found)
    assert longest <= SHARE * (partitions - 1)
    assert max(waited.values()) <= SHARE * (partitions - 1)


def test_a_message_behind_many_of_another_partition_is_next_but_a_share() -> None:
    state = state_of(2)
    serve(state, busy=lambda index: index == 0)
    found = [one_by_one(state)[0].partition.index for _ in range(SHARE + 1)]
    assert found == [0] * SHARE + [1]


def test_a_partition_alone_is_handed_out_without_a_break() -> None:
    state = state_of(1)
    serve(state)
    assert len(state.take_many(400, 0.0)) == 400


def test_all_partitions_are_asked_for_in_turn_however_many_there_are() -> None:
    state, asked = state_of(200, 1 << 10), set[int]()
    for _ in range(4):
        asked |= {request.index for request in serve(state)}
        while one_by_one(state):  # all are due again
            pass
    assert asked == set(range(200))


@pytest.mark.parametrize("partitions", [1, 10, 100, 1000])
def test_prefetching_is_bounded_for_any_number_of_partitions(partitions: int) -> None:
    fetch_bytes = 1 << 16
    state, fetched = state_of(partitions, fetch_bytes), 0
    while requests := serve(state, limit=1 << 14):
        fetched += sum(request.max_bytes for request in requests)
        one_by_one(state)
    assert fetched <= 2 * fetch_bytes * min(partitions, FULL_PARTITIONS_MAX) + 2 * fetch_bytes


def test_a_queue_of_rocketmq_has_its_share_of_the_memory_too() -> None:
    state: Any = ConsumerState(retry_max_s=1.0, max_attempts=6, dedupe=0)
    settings = QueueSettings(buffer_bytes=32_000)
    queues = [OwnedQueue(place(index), GroupOffset(0), 1, settings, state) for index in range(320)]
    state.add(queues)
    state.resume()
    while asked := state.requests(0, 0.0, 64):
        for queue, pull in asked:
            found = PulledRecords(pull.offset + 1, memoryview(bytes(400)), 0, 1000)
            state.fetched([(queue, pull)], [QueueAnswer(found, from_master=True)], 0.0)
    assert {queue._fetched for queue in queues} == {8}, "32,000 * 32 / 320 bytes"
