"""Where a group goes on while a master is away and its slave is up."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from metaq.backends.rocketmq.errors import BrokerAway
from metaq.backends.rocketmq.groups.offsets import Offsets
from metaq.backends.rocketmq.pool import SessionPool
from metaq.client.rocketmq.groups.offsets import BrokerOffsets, RocketStarts
from metaq.discovery.name_server import NameServerDirectory
from metaq.discovery.zk_layout import GroupOffset
from metaq.errors import MetaqError
from metaq.model import Partition, TopicPartition
from metaq.net.retry import RetryPolicy
from metaq.net.transport import Timeouts
from metaq.testing.rocketmq_server import ScriptedCluster

FIRST, SECOND = (TopicPartition("orders", Partition("broker-a", index)) for index in range(2))


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    """A broker with a slave."""
    with ScriptedCluster({"broker-a": (1,)}) as made:
        made.create_topic("orders", queues=2)
        yield made


@pytest.fixture
def pool() -> Iterator[SessionPool]:
    made = SessionPool(Timeouts(2.0, 3.0))
    yield made
    made.close()


@pytest.fixture
def offsets(cluster: ScriptedCluster, pool: SessionPool) -> Offsets:
    """As a consumer has them: a master's group has committed 3 in the first queue, and the route is known."""
    directory = NameServerDirectory(cluster.name_servers, pool)
    made = Offsets(pool, directory, RetryPolicy(retries=0), "g", 3.0)
    directory.queues("orders")
    made.commit("g", {FIRST: 3})
    return made


def kill_master(cluster: ScriptedCluster, offsets: Offsets) -> None:
    cluster.stop_broker("broker-a", 0)
    offsets._routes.invalidate()


def test_a_new_owner_goes_on_where_the_slave_knows_the_group_to_be(cluster: ScriptedCluster, offsets: Offsets) -> None:
    kill_master(cluster, offsets)
    storage = BrokerOffsets(offsets, offsets._pool.clock)
    assert storage.load("g", [FIRST, SECOND]) == {FIRST: GroupOffset(3)}
    assert RocketStarts(offsets, "g", "latest", storage).resolve(FIRST) == GroupOffset(3)


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_slave_that_knows_nothing_of_the_group_proves_nothing(
    cluster: ScriptedCluster, offsets: Offsets, start: str
) -> None:
    kill_master(cluster, offsets)
    storage = BrokerOffsets(offsets, offsets._pool.clock, verify_zero=start != "earliest")
    with pytest.raises(BrokerAway, match="the master"):
        RocketStarts(offsets, "g", start, storage).resolve(SECOND)  # type: ignore[arg-type]
    assert storage.load("g", [SECOND]) == {}


def test_a_zero_that_was_committed_counts(cluster: ScriptedCluster, offsets: Offsets) -> None:
    offsets.commit("g", {SECOND: 0})
    kill_master(cluster, offsets)
    storage = BrokerOffsets(offsets, offsets._pool.clock, verify_zero=True)
    assert RocketStarts(offsets, "g", "latest", storage).resolve(SECOND) == GroupOffset(0)


def test_positions_are_saved_at_masters_only_and_kept_meanwhile(cluster: ScriptedCluster, offsets: Offsets) -> None:
    kill_master(cluster, offsets)
    storage = BrokerOffsets(offsets, offsets._pool.clock)
    with pytest.raises(MetaqError):
        storage.save("g", {FIRST: GroupOffset(5)})
    with pytest.raises(MetaqError):
        storage.save_if_unchanged("g", {FIRST: GroupOffset(5)}, {FIRST: GroupOffset(3)})
    assert storage.load("g", [FIRST]) == {FIRST: GroupOffset(5)}
    cluster.start_broker("broker-a", 0)
    offsets._routes.invalidate()
    assert storage.load("g", [FIRST]) == {FIRST: GroupOffset(5)}
    assert offsets.committed("g", [FIRST]) == {FIRST: 5}


def test_a_master_that_does_not_answer_and_is_in_the_route_is_waited_for(
    cluster: ScriptedCluster, offsets: Offsets
) -> None:
    cluster.stop_broker("broker-a", 0, is_in_route=True)
    storage = BrokerOffsets(offsets, offsets._pool.clock)
    with pytest.raises(MetaqError):
        RocketStarts(offsets, "g", "latest", storage).resolve(FIRST)
