"""What people stumble over with other clients of message queues, and that ours has none of it.

docs/testing.md has the list, with the tests elsewhere that show the rest.
"""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import inspect
import pkgutil
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fix_broker import wait_until
from fix_client import MemoryCluster
from leaks import threads_end
from waiting import ATTEMPTS, in_loop

import metaq.client
from metaq import AsyncMetaQ, AsyncRocketMQ, MetaQ, RocketMQ
from metaq.client.async_metaq import AsyncClusterView
from metaq.client.async_producer import AsyncOrderedProducer, AsyncProducer
from metaq.client.browser import Browser
from metaq.client.cluster import ClusterView
from metaq.client.group_consumer import AsyncGroupConsumer, GroupConsumer
from metaq.client.groups.deliveries import Delivery
from metaq.client.ordered import OrderedProducer
from metaq.client.producer import Producer
from metaq.client.records import Received
from metaq.client.sending.submissions import Submissions
from metaq.discovery.fixed import FixedDirectory
from metaq.errors import MetaqError
from metaq.model import Partition
from metaq.testing.memory import MemoryBroker
from metaq.testing.memory_server import MemoryServer

QUICK: dict[str, Any] = {"poll_max_s": 0.05, "retry_max_s": 0.01}
TWINS: list[tuple[type, type]] = [
    (MetaQ, AsyncMetaQ),
    (ClusterView, AsyncClusterView),
    (Producer, AsyncProducer),
    (OrderedProducer, AsyncOrderedProducer),
    (GroupConsumer, AsyncGroupConsumer),
    (RocketMQ, AsyncRocketMQ),
]
SYNC_ONLY = {
    *(("MetaQ", name) for name in ("checkup", "cluster_kept", "relay")),  # of the command metaq and of the HTTP access
    *(("ClusterView", name) for name in ("members", "replication", "reader", "addresses", "left_out")),  # the same
    *(("RocketMQ", name) for name in ("checkup", "lookup", "topics", "name_servers")),
    *(("Producer", name) for name in ("put", "accepts", "knows", "renew", "xa", "prepare")),  # for the classes above it
}


def public(of: type) -> set[str]:
    return {name for name in dir(of) if not name.startswith("_")}


def parameters(of: Any) -> dict[str, inspect.Parameter]:
    return {name: one for name, one in inspect.signature(of).parameters.items() if name not in ("self", "options")}


@pytest.mark.parametrize(("sync", "twin"), TWINS, ids=lambda one: one.__name__)
def test_asyncio_has_the_same_names_and_parameters(sync: type, twin: type) -> None:
    missing = {name for name in public(sync) - public(twin) if (sync.__name__, name) not in SYNC_ONLY}
    assert (missing, public(twin) - public(sync)) == (set(), set())
    for name in public(sync) & public(twin):
        one, other = getattr(sync, name), getattr(twin, name)
        if inspect.isfunction(one) and inspect.isfunction(other):
            assert set(parameters(other)) <= set(parameters(one)), name
            different = set(parameters(one)) - set(parameters(other))
            assert different <= {"follow"}, f"{name}: to follow, asyncio has consumers"


def test_a_parameter_means_the_same_wherever_it_is() -> None:
    """Seconds are seconds, a limit is a number of messages; one name has one type."""
    types: dict[str, set[str]] = defaultdict(set)
    for one in {each for pair in TWINS for each in pair}:
        for name in public(one) | {"__init__"}:
            if inspect.isfunction(method := inspect.getattr_static(one, name)):
                for parameter in parameters(method).values():
                    types[parameter.name].add(str(parameter.annotation).removesuffix(" | None"))
    assert types["timeout"] <= {"float", "int"}
    assert types["max_messages"] == {"int"}
    for name in ("topic", "group", "partition", "timeouts", "linger_s", "window", "workers"):
        assert len(types[name]) == 1, (name, types[name])


def records() -> Iterator[type]:
    """All dataclasses of the client that have public names."""
    for info in pkgutil.walk_packages(metaq.client.__path__, "metaq.client."):
        for name, one in vars(importlib.import_module(info.name)).items():
            own = isinstance(one, type) and one.__module__ == info.name and not name.startswith("_")
            if own and dataclasses.is_dataclass(one):
                yield one


RESULTS = ("Sent", "Parked", "PartitionInfo", "GroupLag", "OffsetChange", "Prepared")


@pytest.mark.parametrize("record", [one for one in records() if one.__name__ in RESULTS], ids=lambda one: one.__name__)
def test_results_are_frozen_and_slotted_and_show_no_payload(record: Any) -> None:
    assert record.__dataclass_params__.frozen
    assert "__slots__" in vars(record)
    shown = {field.name for field in dataclasses.fields(record) if field.repr}
    assert not shown & {"data", "body", "payload"}


def test_messages_are_immutable_and_slotted_and_show_no_payload() -> None:
    message = Received(
        topic="t", partition=Partition(0, 0), offset=0, end=21, message_id=1, attribute=None, data=b"secret"
    )
    for name in ("topic", "partition", "offset", "end", "message_id", "timestamp_ms", "attribute", "data", "other"):
        with pytest.raises(AttributeError):
            setattr(message, name, None)
    assert "secret" not in repr(message)
    assert issubclass(Delivery, Received)
    assert not hasattr(Delivery, "__dict__") or "__dict__" not in vars(Delivery)


def test_the_list_of_results_is_whole() -> None:
    assert {one.__name__ for one in records()} >= set(RESULTS)


def test_objects_are_small() -> None:
    """Not one class that does everything: what a cluster holds, a group, a producer are objects of their own."""
    for one in {each for pair in TWINS for each in pair}:
        assert len(public(one)) <= 20, one.__name__


def test_nothing_of_the_client_measures_with_the_clock_on_the_wall() -> None:
    """Deadlines go by the monotonic clock; moments that are stored, or compared with a broker's, are wall time."""
    root = Path(metaq.client.__file__).parent
    found = {str(path.relative_to(root)) for path in root.rglob("*.py") if "wall_clock_ms" in path.read_text()}
    stored = {"offsets.py", "groups/parking.py"}
    compared = ("rocketmq", "mirror", "checkup", "ownership/coordinator", "ownership/incarnations")
    assert {one for one in found if one in stored or any(word in one for word in compared)} == found


class TestLoops:
    def test_a_client_is_made_without_a_loop_and_serves_one_after_the_other(self, metaq_memory: MemoryServer) -> None:
        mq = AsyncMetaQ(metaq_memory.cluster)
        producer = mq.producer()
        consumer_of = lambda group: mq.consumer(group, ["orders"], **QUICK)  # noqa: E731

        async def main(group: str) -> bytes:
            await producer.send("orders", group)
            async with consumer_of(group) as consumer:
                found: list[bytes] = []
                while group.encode() not in found:
                    found += [one.data for one in await consumer.fetch(timeout=10)]
                return found[-1]

        assert asyncio.run(main("first")) == b"first"

        async def second() -> bytes:
            try:
                return await main("second")
            finally:
                await mq.close()

        assert asyncio.run(second()) == b"second"

    def test_a_batch_is_one_await(self, metaq_memory: MemoryServer) -> None:
        metaq_memory.client().producer().send_many("orders", [b"%d" % number for number in range(300)])

        async def main() -> int:
            async with metaq_memory.async_client() as mq, mq.consumer("g", ["orders"], **QUICK) as consumer:
                wait = asyncio.timeout(60)
                async with wait:
                    first = await consumer.fetch(1)
                    return len(first) + len(await consumer.fetch(1000))

        assert asyncio.run(main()) == 300


@in_loop
async def test_an_ordered_producer_for_asyncio_keeps_the_order_over_a_kill(
    metaq_memory: MemoryServer, tmp_path: Path
) -> None:
    async with metaq_memory.async_client() as mq:
        ordered = mq.ordered_producer({"orders": "0:1"}, tmp_path / "spool.sqlite", retry_s=60)
        async with ordered as producer:
            assert await producer.send("orders", "0", key="alice") is not None
            metaq_memory.kill()
            for number in range(1, 4):
                assert await producer.send("orders", str(number), key="alice") is None
            assert list(producer.spooled.values()) == [3]
            metaq_memory.start()
            assert await producer.recover(timeout=60)
        assert [one.data async for one in mq.browse("orders")] == [b"0", b"1", b"2", b"3"]
        search = mq.search_key("orders", "nobody")
        assert [one async for one in search] == []
        assert (search.scanned, search.is_complete) == (4, True)
        assert await mq.cluster.partitions("orders") == await mq.cluster.writable("orders") == [Partition(0, 0)]


class TestResources:
    def test_there_is_no_thread_for_each_partition(self) -> None:
        with MemoryServer(partitions=64) as server:
            producer = server.client().producer()
            for index in range(64):
                producer.send("orders", "x", partition=Partition(0, index))
            before = set(threading.enumerate())
            with server.client().consumer("g", ["orders"], offsets=None, **QUICK) as consumer:
                found = 0
                while found < 64:
                    found += len(consumer.fetch(timeout=10))
                assert len(consumer.assignment) == 64
                mine = [one.name for one in threading.enumerate() if one not in before]
            assert len(mine) <= 2, "who keeps the membership, and who asks the broker"

    def test_a_call_for_messages_ends_after_a_number_of_seconds(self, metaq_memory: MemoryServer) -> None:
        with metaq_memory.client().consumer("g", ["orders"], **QUICK) as consumer:
            for timeout in (-1.0, float("nan")):
                with pytest.raises(ValueError, match=f"timeout {timeout}: expected 1 or more, 0 or more"):
                    consumer.fetch(timeout=timeout)

    @in_loop
    async def test_a_call_for_messages_leaves_nothing_behind(self, metaq_memory: MemoryServer) -> None:
        with metaq_memory.client().consumer("g", ["orders"], **QUICK) as consumer:
            consumer.fetch(timeout=0)
            state: Any = consumer._state
            before = len(state.wakers)
            with threads_end():
                for _ in range(200):
                    consumer.fetch(timeout=0)
            assert len(state.wakers) == before

        async with metaq_memory.async_client() as mq, mq.consumer("a", ["orders"], **QUICK) as consumer:
            await consumer.fetch(timeout=0)
            state: Any = consumer._state
            before = len(state.wakers), len(asyncio.all_tasks())
            for _ in range(200):
                await consumer.fetch(timeout=0)
            assert (len(state.wakers), len(asyncio.all_tasks())) == before

    @pytest.mark.parametrize("away", [False, True], ids=["nothing new", "the broker is away"])
    def test_a_waiting_consumer_uses_no_processor(self, metaq_memory: MemoryServer, away: bool) -> None:
        """Less than five parts in a hundred of a core, the broker in memory and pytest included."""
        with metaq_memory.client().consumer("g", ["orders"]) as consumer:
            metaq_memory.client().producer().send("orders", "x")
            assert consumer.fetch(timeout=60)
            if away:
                metaq_memory.kill()
            consumer.fetch(timeout=0.2)

            def share() -> float:
                begun, used = time.monotonic(), time.process_time()
                assert consumer.fetch(timeout=1.0) == []
                return (time.process_time() - used) / (time.monotonic() - begun)

            assert any(share() < 0.05 for _ in range(ATTEMPTS))

    def test_new_messages_do_not_wait_for_the_next_look(self, metaq_memory: MemoryServer) -> None:
        """Who waits is woken by the first answer that has messages: no loop of short pauses in between."""
        mq = metaq_memory.client()
        mq.producer().send("orders", "a")
        with mq.consumer("g", ["orders"], poll_max_s=0.1) as consumer:
            consumer.fetch(timeout=10)
            mq.producer().send("orders", "b")
            begun = time.monotonic()
            assert [one.data for one in consumer.fetch(timeout=300)] == [b"b"]
            assert time.monotonic() - begun < 60


class TestEnds:
    def test_a_lost_connection_is_no_end_of_data(self) -> None:
        broker = MemoryBroker({"orders": 1})
        cluster = MemoryCluster(broker)
        directory = FixedDirectory(cluster.addresses, cluster.pool)
        Producer(directory, cluster.pool).send_many("orders", [b"x" * 1_000_000] * 30)
        messages = iter(Browser(directory, cluster.pool, "orders", clock=cluster.transport.clock))
        next(messages)
        broker.kill()
        with pytest.raises(MetaqError) as failed:
            list(messages)
        assert failed.value.retryable

    def test_a_group_of_a_broker_that_is_away_waits_and_is_not_at_its_end(self, metaq_memory: MemoryServer) -> None:
        mq = metaq_memory.client()
        mq.producer().send("orders", "a")
        seen: list[bytes] = []

        def read() -> None:
            with mq.consumer("g", ["orders"], **QUICK) as consumer:
                for message in consumer:
                    seen.append(message.data)
                    if message.data == b"last":
                        return

        thread = threading.Thread(target=read)
        thread.start()
        wait_until(lambda: seen == [b"a"], "the first one came")
        metaq_memory.kill()
        thread.join(0.3)
        assert thread.is_alive()
        metaq_memory.start()
        metaq_memory.client().producer().send("orders", "last")
        thread.join(60)
        assert seen == [b"a", b"last"]


FORGOTTEN = {
    "producer": """
producer = MetaQ(sys.argv[1]).producer(linger_s=30)
producer.submit("orders", "not lost")
""",
    "consumer": """
consumer = MetaQ(sys.argv[1]).consumer("g", ["orders"])
assert consumer.fetch(timeout=10)
consumer.fetch(timeout=0)
""",
}


@pytest.mark.process
@pytest.mark.parametrize("what", sorted(FORGOTTEN))
def test_what_a_program_leaves_open_is_closed_with_a_warning(metaq_memory: MemoryServer, what: str) -> None:
    mq = metaq_memory.client()
    mq.producer().send("orders", "first")
    program = f"import sys\nfrom metaq import MetaQ\n{FORGOTTEN[what]}"
    command = [sys.executable, "-W", "default", "-c", program, metaq_memory.cluster]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "was never closed" in done.stderr
    if what == "producer":
        assert [one.data for one in mq.browse("orders")] == [b"first", b"not lost"]
    else:
        with mq.consumer("g", ["orders"], **QUICK) as consumer:
            assert consumer.fetch(timeout=0.1) == [], "its position was saved"


def test_a_forgotten_producer_is_named(recwarn: pytest.WarningsRecorder, metaq_memory: MemoryServer) -> None:
    producer = metaq_memory.client().producer(linger_s=30)
    future = producer.submit("orders", "x")
    submissions = next(one for one in vars(producer).values() if isinstance(one, Submissions))
    submissions._close_forgotten()
    assert future.result(0).offset == 0
    assert [str(one.message) for one in recwarn.list if one.category is ResourceWarning]
