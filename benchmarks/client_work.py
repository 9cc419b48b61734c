"""Runs one client of a queue in a process of its own and prints its times as JSON. ``client_peer.py`` starts it.

    python benchmarks/client_work.py CLIENT produce|consume|members|idle ADDRESS TOPIC ROWS PAYLOAD_BYTES

``CLIENT`` is ``metaq``, ``metaq-many``, ``metaq-async``, ``confluent``, ``aiokafka``. The clock starts when the client
is connected and has sent, or read, one message. ``produce`` ends when all results have been checked. The two clients
for asyncio await ``flush`` instead of each future: ``asyncio.gather`` takes 3 to 4 us for each, of any library.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

BATCH: Final = 1000
"""Messages of one call, if a client has calls for many."""
DEADLINE_S: Final = 120.0
IDLE_S: Final = 10.0
LINGER_S: Final = 0.005


@dataclass(frozen=True)
class Work:
    address: str
    topic: str
    rows: int
    payload_bytes: int
    times: dict[str, float] = field(default_factory=dict)

    def payloads(self) -> Iterator[bytes]:
        for number in range(self.rows):
            yield b"%0*d" % (self.payload_bytes, number)

    @contextmanager
    def measured(self, name: str = "") -> Iterator[None]:
        """Record the seconds, and the CPU seconds of this process, that the block takes."""
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        yield
        self.times[f"{name}wall_s"] = time.perf_counter() - wall_s
        self.times[f"{name}cpu_s"] = time.process_time() - cpu_s


def _group() -> str:
    return f"bench-{uuid.uuid4().hex[:8]}"


# ---- this project


def metaq_produce(work: Work) -> None:
    """Each message with ``submit`` and a future of its own."""
    from metaq import MetaQ

    with MetaQ(work.address) as mq, mq.producer(linger_s=LINGER_S) as producer:
        producer.send(work.topic, b"first")
        with work.measured():
            sent = [producer.submit(work.topic, payload) for payload in work.payloads()]
            producer.flush()
            assert all(each.result().message_id for each in sent)


def metaq_produce_many(work: Work) -> None:
    """``send_many`` of a list."""
    from metaq import MetaQ

    with MetaQ(work.address) as mq, mq.producer() as producer:
        producer.send(work.topic, b"first")
        payloads = work.payloads()
        with work.measured():
            while some := [payload for _, payload in zip(range(BATCH), payloads, strict=False)]:
                assert len(producer.send_many(work.topic, some)) == len(some)


async def metaq_produce_async(work: Work) -> None:
    """Each message with ``await submit``."""
    from metaq import AsyncMetaQ

    async with AsyncMetaQ(work.address) as mq, mq.producer(linger_s=LINGER_S) as producer:
        await producer.send(work.topic, b"first")
        with work.measured():
            sent = [await producer.submit(work.topic, payload) for payload in work.payloads()]
            await producer.flush()
            assert all(each.result().message_id for each in sent)


def metaq_consume(work: Work) -> None:
    """``for message in consumer``."""
    from metaq import MetaQ

    with MetaQ(work.address) as mq, mq.consumer(_group(), [work.topic], start="earliest") as consumer:
        messages = iter(consumer)
        next(messages)
        with work.measured():
            for _ in range(work.rows - 1):
                assert len(next(messages).data)


def metaq_fetch(work: Work) -> None:
    from metaq import MetaQ

    with MetaQ(work.address) as mq, mq.consumer(_group(), [work.topic], start="earliest") as consumer:
        left = work.rows - len(consumer.fetch(1, timeout=DEADLINE_S))
        with work.measured():
            while left > 0:
                left -= len(consumer.fetch(BATCH, timeout=DEADLINE_S))


async def metaq_consume_async(work: Work) -> None:
    """``await fetch``."""
    from metaq import AsyncMetaQ

    async with AsyncMetaQ(work.address) as mq, mq.consumer(_group(), [work.topic], start="earliest") as consumer:
        left = work.rows - len(await consumer.fetch(1, timeout=DEADLINE_S))
        with work.measured():
            while left > 0:
                left -= len(await consumer.fetch(BATCH, timeout=DEADLINE_S))


def metaq_idle(work: Work) -> None:
    """Run a consumer that has read everything and waits."""
    from metaq import MetaQ

    with MetaQ(work.address) as mq, mq.consumer(_group(), [work.topic], start="latest") as consumer:
        consumer.fetch(1, timeout=2.0)
        with work.measured():
            consumer.fetch(1, timeout=IDLE_S)


def metaq_members(work: Work) -> None:
    """Run two members of one group, one after the other, and the first alone again. ``address`` is a ZooKeeper's."""
    from metaq import MetaQ

    group = _group()
    with MetaQ(work.address) as mq:
        with work.measured("start-up "):
            first = mq.consumer(group, [work.topic], start="latest")
            _until(lambda: _polled(first) == 2)
        with work.measured("join "):
            second = mq.consumer(group, [work.topic], start="latest")
            _until(lambda: [_polled(first), _polled(second)] == [1, 1])
        with work.measured("leave "):
            second.close()
            _until(lambda: _polled(first) == 2)
        first.close()


def _polled(consumer: Any) -> int:
    consumer.fetch(1, timeout=0.01)
    return len(consumer.assignment)


def _until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline_s:
            sys.exit("client_work: partitions were not shared")


# ---- confluent-kafka


def confluent_produce(work: Work) -> None:
    """Each message with ``produce`` and a callback."""
    from confluent_kafka import KafkaError, Message, Producer

    acknowledged = 0

    def delivered(error: KafkaError | None, _: Message) -> None:
        nonlocal acknowledged
        assert error is None, error
        acknowledged += 1

    more = {"linger.ms": LINGER_S * 1000, "queue.buffering.max.messages": 1_000_000}
    producer = Producer({"bootstrap.servers": work.address, "acks": "all", **more})
    producer.produce(work.topic, b"first", on_delivery=delivered)
    producer.flush()
    with work.measured():
        for payload in work.payloads():
            producer.produce(work.topic, payload, on_delivery=delivered)
            producer.poll(0)
        producer.flush()
        assert acknowledged == work.rows + 1


def _confluent_consumer(work: Work, group: str, start: str = "earliest") -> Any:
    from confluent_kafka import Consumer

    consumer = Consumer({"bootstrap.servers": work.address, "group.id": group, "auto.offset.reset": start})
    consumer.subscribe([work.topic])
    return consumer


def _confluent_topic(work: Work) -> None:
    """Create the topic: a consumer does not."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": work.address})
    producer.produce(work.topic, b"first")
    producer.flush()


def confluent_consume(work: Work) -> None:
    consumer = _confluent_consumer(work, _group())
    left = work.rows - len(consumer.consume(1, DEADLINE_S))
    with work.measured():
        while left > 0:
            left -= sum(1 for message in consumer.consume(BATCH, 1.0) if message.value() is not None)
    consumer.close()


def confluent_idle(work: Work) -> None:
    """Run a consumer that has read everything and waits."""
    _confluent_topic(work)
    consumer = _confluent_consumer(work, _group(), "latest")
    consumer.poll(5.0)
    with work.measured():
        consumer.poll(IDLE_S)
    consumer.close()


def confluent_members(work: Work) -> None:
    def polled(consumer: Any) -> int:
        consumer.poll(0.01)
        return len(consumer.assignment())

    _confluent_topic(work)
    group = _group()
    with work.measured("start-up "):
        first = _confluent_consumer(work, group, "latest")
        _until(lambda: polled(first) == 2)
    with work.measured("join "):
        second = _confluent_consumer(work, group, "latest")
        _until(lambda: [polled(first), polled(second)] == [1, 1])
    with work.measured("leave "):
        second.close()
        _until(lambda: polled(first) == 2)
    first.close()


# ---- aiokafka


async def aiokafka_produce(work: Work) -> None:
    """Each message with ``await send``."""
    from aiokafka import AIOKafkaProducer

    more = {"acks": "all", "linger_ms": int(LINGER_S * 1000)}
    async with AIOKafkaProducer(bootstrap_servers=work.address, **more) as producer:
        await producer.send_and_wait(work.topic, b"first")
        with work.measured():
            sent = [await producer.send(work.topic, payload) for payload in work.payloads()]
            await producer.flush()
            assert all(each.result().timestamp for each in sent)


def _aiokafka_consumer(work: Work, group: str, start: str = "earliest") -> Any:
    from aiokafka import AIOKafkaConsumer

    return AIOKafkaConsumer(work.topic, bootstrap_servers=work.address, group_id=group, auto_offset_reset=start)


async def aiokafka_consume(work: Work) -> None:
    async with _aiokafka_consumer(work, _group()) as consumer:
        await consumer.getone()
        left = work.rows - 1
        with work.measured():
            while left > 0:
                found = await consumer.getmany(timeout_ms=1000, max_records=BATCH)
                left -= sum(map(len, found.values()))


async def aiokafka_idle(work: Work) -> None:
    """Run a consumer that has read everything and waits."""
    async with _aiokafka_consumer(work, _group(), "latest") as consumer:
        await consumer.getmany(timeout_ms=2000)
        with work.measured():
            await consumer.getmany(timeout_ms=int(IDLE_S * 1000))


DOES: Final[dict[tuple[str, str], Callable[[Work], Awaitable[None] | None]]] = {
    ("metaq", "produce"): metaq_produce,
    ("metaq", "consume"): metaq_consume,
    ("metaq", "idle"): metaq_idle,
    ("metaq", "members"): metaq_members,
    ("metaq-many", "produce"): metaq_produce_many,
    ("metaq-many", "consume"): metaq_fetch,
    ("metaq-async", "produce"): metaq_produce_async,
    ("metaq-async", "consume"): metaq_consume_async,
    ("confluent", "produce"): confluent_produce,
    ("confluent", "consume"): confluent_consume,
    ("confluent", "idle"): confluent_idle,
    ("confluent", "members"): confluent_members,
    ("aiokafka", "produce"): aiokafka_produce,
    ("aiokafka", "consume"): aiokafka_consume,
    ("aiokafka", "idle"): aiokafka_idle,
}


def main() -> None:
    client, does, address, topic, rows, payload_bytes = sys.argv[1:]
    work = Work(address, topic, int(rows), int(payload_bytes))
    done = DOES[client, does](work)
    if done is not None:
        asyncio.run(_awaited(done))
    print(json.dumps(work.times))


async def _awaited(done: Awaitable[None]) -> None:
    await done


if __name__ == "__main__":
    main()
