"""A partition that always has messages does not keep a consumer from the others, by whatever call it reads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from four_clients import CLIENTS, FourClients
from waiting import in_loop, until

from metaq.client.groups.round_robin import SHARE
from metaq.testing.broker_process import BrokerProcess

pytestmark = pytest.mark.process

BUSY, QUIET = 1000, 10
WAYS = ["run", "run with workers", "fetch", "iteration"]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker"), partitions=2) as made:
        yield made


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest, broker: BrokerProcess) -> FourClients:
    return FourClients(broker, request.param)


async def both_are_fetched(consumer: Any, topic: str) -> None:
    """Wait until there are messages of both partitions."""
    if hasattr(consumer, "_start"):
        consumer._require_usable()  # else it was when the block was entered
    waiting = consumer._state._order._queue
    await until(lambda: len([one for one in list(waiting) if one.where.topic == topic]) == 2, "both are fetched", 60)


@pytest.mark.parametrize("way", WAYS)
@in_loop
async def test_a_quiet_partition_waits_for_a_share_of_a_busy_one(client: FourClients, way: str) -> None:
    client.send(*(b"%d" % number for number in range(BUSY)), partition=0)
    client.send(*(b"%d" % number for number in range(QUIET)), partition=1)
    in_threads = way == "run with workers" and not client.is_async
    seen: list[int] = []
    all_quiet = threading.Event()

    def handle(message: Any) -> bool:
        seen.append(message.partition.index)
        if seen.count(1) == QUIET:
            all_quiet.set()
        elif in_threads and seen.count(0) > SHARE:  # the machine may stop a thread in front of its handler
            assert all_quiet.wait(60)
        return len(seen) == BUSY + QUIET

    async with client.consumer() as consumer:
        await both_are_fetched(consumer, client.topic)
        await client.read(consumer, way, handle)
    quiet = [at for at, index in enumerate(seen) if index == 1]
    assert quiet[0] <= SHARE + in_threads
    assert quiet[-1] < SHARE + QUIET + in_threads  # less than a share
