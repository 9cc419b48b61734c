"""How queues are divided, beside what Java's client computes for the same members and queues."""

from __future__ import annotations

from metaq.client.groups.ownership.assignment import range_of, wanted_partitions
from metaq.client.rocketmq.groups.assignment import consistent
from metaq.model import Partition

QUEUES = [Partition("broker-a", index) for index in range(12)]


def averagely(number: int, consumers: int, queues: int) -> list[int]:
    """RocketMQ's formula, as its client has it."""
    rest = queues % consumers
    size = 1 if queues <= consumers else queues // consumers + (1 if rest and number < rest else 0)
    start = number * size if rest and number < rest else number * size + rest
    return list(range(start, start + min(size, queues - start)))


def test_blocks_of_neighbours_are_those_of_rocketmq() -> None:
    for queues in range(13):
        for consumers in range(1, 15):
            ids = [f"{index:02}" for index in range(consumers)]
            for number, consumer in enumerate(ids):
                own = range_of("t", consumer, ids, QUEUES[:queues])
                assert [queue.index for queue in own] == averagely(number, consumers, queues)


def test_queues_are_sorted_by_number_and_not_as_texts() -> None:
    members = {"a": ["t"], "b": ["t"]}
    wanted = wanted_partitions(range_of, "a", members, {"t": QUEUES}, order=lambda queue: queue)
    assert sorted(where.partition.index for where in wanted) == [0, 1, 2, 3, 4, 5]


def test_consistent_hashing_gives_each_queue_one_owner_and_moves_few() -> None:
    ids = ["127.0.0.1@1", "127.0.0.1@2", "127.0.0.1@3"]
    owners = {queue: one for one in ids for queue in consistent("t", one, ids, QUEUES)}
    assert set(owners) == set(QUEUES)
    fewer = {queue: one for one in ids[:2] for queue in consistent("t", one, ids[:2], QUEUES)}
    assert {queue for queue in QUEUES if owners[queue] != fewer[queue]} == {
        queue for queue in QUEUES if owners[queue] == ids[2]
    }
    assert consistent("t", "a", [], QUEUES) == []
