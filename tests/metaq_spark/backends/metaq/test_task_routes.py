"""Where the rows of a task can go: the brokers of a topic are waited for as the options say."""

from __future__ import annotations

import pytest
from metaq_harness import ADDRESSES, MemoryBrokers

from metaq.errors import ConnectionFailed, TopicNotFound
from metaq.model import Partition, TopicPartition
from metaq.testing.memory import MemoryBroker
from metaq_spark.backends.metaq.options import parse_sink_options
from metaq_spark.backends.metaq.sink import RouteMemory, TaskRoutes
from metaq_spark.options.table import Use
from metaq_spark.sink.first_look import FirstLook


class Routes:
    """Two brokers with topic ``t``, and the routes of a task whose rows name their topics."""

    def __init__(self, *, begun: bool) -> None:
        self.made = MemoryBrokers(MemoryBroker({"t": 1}, broker_id=0), MemoryBroker({"t": 1}, broker_id=1))
        given = {"brokers": ",".join(map(str, ADDRESSES)), "retries": "2", "brokerWaitMs": "0"}
        options, memory = parse_sink_options(given, Use.STREAM_WRITE), RouteMemory(self.made.pool, self.made.clock)
        self.task = TaskRoutes(options, FirstLook({}), memory, begun=begun)


@pytest.mark.parametrize("begun", [False, True])
def test_the_brokers_of_a_topic(begun: bool) -> None:
    routes = Routes(begun=begun)
    assert routes.task.partitions_of("t") == [Partition(0, 0), Partition(1, 0)]
    assert routes.task.address_of(TopicPartition("t", Partition(1, 0))) == ADDRESSES[1]


@pytest.mark.parametrize("begun", [False, True])
def test_a_broker_that_is_away_is_tried_as_often_as_the_options_say(begun: bool) -> None:
    routes = Routes(begun=begun)
    routes.made.brokers[1].kill()
    with pytest.raises(ConnectionFailed, match="broker b1:1"):
        routes.task.partitions_of("t")
    assert routes.made.clock.slept_s == pytest.approx([0.2, 0.4])


def test_a_topic_that_no_broker_offers_is_waited_for_by_a_query_that_wrote_before() -> None:
    fresh, resumed = Routes(begun=False), Routes(begun=True)
    for routes in (fresh, resumed):
        with pytest.raises(TopicNotFound, match="u"):
            routes.task.partitions_of("u")
    assert fresh.made.clock.slept_s == []
    assert resumed.made.clock.slept_s == pytest.approx([0.2, 0.4])
