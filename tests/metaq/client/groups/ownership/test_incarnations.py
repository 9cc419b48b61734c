"""Another broker with other messages at the same address: consumers do not go on at the offsets of the old ones."""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from fix_broker import wait_until

from metaq.client.groups.deliveries import Delivery
from metaq.client.groups.ownership.incarnations import Incarnations
from metaq.client.groups.ownership.last_consumed import LastConsumed
from metaq.client.offsets import GroupOffset, MemoryOffsets, OffsetStorage, file
from metaq.client.sql_offsets import sqlite
from metaq.discovery.base import Directory
from metaq.errors import ConnectionFailed
from metaq.model import OffsetRange, Partition, PartitionState, TopicPartition
from metaq.protocols.text.extensions import EXT_INCARNATION
from metaq.testing.memory_partition import MemoryPartition
from metaq.testing.memory_server import MemoryServer

OLD = [f"old {number}" for number in range(10)]
NEW = [f"new, and longer, {number}" for number in range(20)]


@pytest.fixture
def server() -> Iterator[MemoryServer]:
    with MemoryServer() as made:
        yield made


def replace_by_another(server: MemoryServer) -> None:
    """End the broker; another one without messages gets its address."""
    server.kill()
    server.broker.clear()
    server.start()


def send(server: MemoryServer, texts: list[str]) -> None:
    with server.client() as mq:
        mq.producer().send_many("orders", texts)


def texts(messages: list[Delivery]) -> list[str]:
    return [one.data.decode() for one in messages]


def read(server: MemoryServer, count: int, **options: Any) -> list[str]:
    """What a consumer of the group gets: so many messages, and what comes with them."""
    found: list[str] = []
    with server.client() as mq, mq.consumer("g", ["orders"], **options) as consumer:

        def enough() -> bool:
            found.extend(texts(consumer.fetch(timeout=0.05)))
            return bool(consumer.assignment) and len(found) >= count

        wait_until(enough, f"{count} messages are read")
        return found + texts(consumer.fetch(timeout=0.05))


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if "for other messages" in record.message]


@pytest.fixture(params=["default", "file", "sqlite"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> OffsetStorage | None:
    return {"default": None, "file": file(tmp_path / "o.json"), "sqlite": sqlite(tmp_path / "o.sqlite")}[request.param]


def test_a_group_begins_anew_at_another_broker(
    server: MemoryServer, storage: OffsetStorage | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    send(server, OLD)
    assert read(server, len(OLD), offsets=storage) == OLD
    assert read(server, 0, offsets=storage) == []
    assert not warnings(caplog)
    replace_by_another(server)
    send(server, NEW)  # more bytes than before: the old offset is in the middle of a message
    assert read(server, len(NEW), offsets=storage) == NEW
    (warning,) = warnings(caplog)
    assert "group g, orders/0-0: offset" in warning
    assert "the topic was created again, or another broker is at this address; beginning at 0" in warning
    assert read(server, 0, offsets=storage) == []
    assert len(warnings(caplog)) == 1


def test_a_group_without_incarnations_begins_anew_behind_the_end(
    server: MemoryServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    server.broker.extensions -= {EXT_INCARNATION}
    send(server, NEW)
    assert read(server, len(NEW)) == NEW
    replace_by_another(server)
    assert read(server, 0) == []
    send(server, OLD[:2])
    assert read(server, 2) == OLD[:2]
    assert warnings(caplog)


def test_latest_is_the_end_of_what_is_there_now(server: MemoryServer) -> None:
    send(server, OLD)
    assert read(server, len(OLD)) == OLD
    replace_by_another(server)
    send(server, NEW)
    assert read(server, 0, start="latest") == []
    send(server, ["later"])
    assert read(server, 1, start="latest") == ["later"]


def test_a_consumer_that_runs_notices_it(server: MemoryServer) -> None:
    send(server, OLD)
    with server.client() as mq, mq.consumer("g", ["orders"]) as consumer:
        found: list[str] = []
        wait_until(lambda: bool(found.extend(texts(consumer.fetch(timeout=0.1)))) or found == OLD, "the old ones")
        replace_by_another(server)
        send(server, NEW)
        found.clear()
        wait_until(lambda: bool(found.extend(texts(consumer.fetch(timeout=0.1)))) or len(found) >= len(NEW), "new ones")
        assert found == NEW
    assert read(server, 0) == []


def test_a_topic_made_again_with_messages_of_other_lengths(server: MemoryServer) -> None:
    send(server, OLD)
    with server.client() as mq, mq.consumer("g", ["orders"]) as consumer:
        found: list[str] = []
        wait_until(lambda: bool(found.extend(texts(consumer.fetch(timeout=0.1)))) or found == OLD, "the old ones")
        server.broker.recreate("orders", 0)
        send(server, NEW)  # the old offset is in the middle of a message: no error
        found.clear()
        wait_until(lambda: bool(found.extend(texts(consumer.fetch(timeout=0.1)))) or found == NEW, "the new ones")


def test_so_does_one_with_asyncio(server: MemoryServer) -> None:
    send(server, OLD)

    async def replaced() -> list[str]:
        found: list[str] = []
        async with server.async_client() as mq, mq.consumer("g", ["orders"]) as consumer:
            while len(found) < len(OLD):
                found += texts(await consumer.fetch(timeout=0.1))
            await asyncio.to_thread(replace_by_another, server)
            await asyncio.to_thread(send, server, NEW)
            while len(found) < len(OLD) + len(NEW):
                found += texts(await consumer.fetch(timeout=0.1))
        return found

    assert asyncio.run(asyncio.wait_for(replaced(), 20)) == OLD + NEW
    assert read(server, 0) == []


def test_a_restart_is_no_other_broker(server: MemoryServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    send(server, OLD)
    assert read(server, len(OLD)) == OLD
    server.restart()
    send(server, NEW)
    assert read(server, len(NEW)) == NEW
    assert not warnings(caplog)


# ---- the same broker, put back to an older copy


def put_back(server: MemoryServer, copied: dict[tuple[str, int], MemoryPartition]) -> None:
    """End the broker, replace its partitions by a copy, with the same incarnations, and start it again."""
    server.kill()
    server.broker.partitions = copied
    server.start()


@pytest.mark.parametrize("count", [5, 30])
def test_a_group_goes_on_with_what_came_since(
    server: MemoryServer, storage: OffsetStorage | None, caplog: pytest.LogCaptureFixture, count: int
) -> None:
    send(server, OLD[:4])
    copied = copy.deepcopy(server.broker.partitions)
    send(server, OLD[4:])
    assert read(server, len(OLD), offsets=storage) == OLD
    put_back(server, copied)
    since = [f"old {number + 100}"[:5] for number in range(count)]
    send(server, since)
    assert read(server, count, offsets=storage) == since
    assert len([record for record in caplog.records if "was restored from an older copy" in record.message]) == 1
    send(server, ["later"])
    assert read(server, 1, offsets=storage) == ["later"]


def test_a_group_whose_last_message_retention_has_removed_goes_on(
    server: MemoryServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.broker.segment_bytes_max = 64
    for text in OLD:
        send(server, [text])
    assert read(server, len(OLD)) == OLD
    for text in NEW:
        send(server, [text])
    partition = server.broker.partition("orders", 0)
    partition.drop_segments(sum(1 for start, _ in partition.segments if start <= 300))
    read(server, 10)
    assert "older copy" not in caplog.text


def test_the_storage_is_not_asked_about_a_broker_that_is_away() -> None:
    """A group's brokers are its storage: the one that is away would raise an error, and nothing would be read."""
    here, away = (TopicPartition("t", Partition(broker, 0)) for broker in range(2))

    class Answering:
        def available_now(self, topics: Iterable[str]) -> tuple[dict[TopicPartition, PartitionState], dict[Any, Any]]:
            return {here: PartitionState(OffsetRange(0, 21), "one")}, {}

    class AtBrokers(MemoryOffsets):
        def incarnations(self, group: str, partitions: Collection[TopicPartition]) -> dict[TopicPartition, str]:
            if away in partitions:
                raise ConnectionFailed("127.0.0.1:1", "connect", "refused")
            return {}

        def save_incarnations(self, group: str, offsets: object, incarnations: dict[TopicPartition, str]) -> None:
            assert away not in incarnations

    last, begin = cast(LastConsumed, None), lambda where, since_ms: GroupOffset(0)
    checks = Incarnations(cast(Directory, Answering()), AtBrokers(), "g", ["t"], begin, last)
    checks.known[away] = None
    assert checks.checked({}, {here}) == {}
    assert checks.known == {here: "one", away: None}
