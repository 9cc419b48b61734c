"""The bundled broker at real name servers: a topic has its route when the request that made it is answered."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fix_broker import wait_until
from request_replay import Asker

from metaq.model import Address
from metaq.protocols.remoting.bodies.groups import ConsumerData, HeartbeatData
from metaq.protocols.remoting.headers.clients import HeartBeat
from peers.rocketmq.ask import ask
from peers.rocketmq.bundled import BundledServer
from peers.rocketmq.servers import GET_ROUTE, UPDATE_TOPIC, Cluster

pytestmark = pytest.mark.slow

SEND = 310
TOPICS = 30


@pytest.fixture
def bundled(rocketmq_cluster: Cluster, tmp_path: Path) -> Iterator[BundledServer]:
    for _ in range(2):
        rocketmq_cluster.start_name_server()
    with BundledServer(tmp_path / "ours", {"namesrvAddr": rocketmq_cluster.name_servers}) as server:
        yield server


def queues(cluster: Cluster, topic: str) -> list[Any]:
    """Queues of a topic at each name server, ``None`` where it has no route."""
    asked = {"topic": topic, "acceptStandardJsonOnly": "true"}
    answers = [ask(each.address, GET_ROUTE, asked) for each in cluster.names]
    return [None if each.code else json.loads(each.body)["queueDatas"][0]["writeQueueNums"] for each in answers]


def make(server: BundledServer, topic: str, count: int = 4) -> None:
    fields = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": count, "writeQueueNums": count, "perm": 6}
    fields |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false"}
    ask(server.address, UPDATE_TOPIC, fields).checked()


def send(server: BundledServer, topic: str) -> None:
    fields = {"a": "pg", "b": topic, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0, "i": ""}
    ask(server.address, SEND, fields | {"j": 0, "k": "false", "m": "false"}, b"one tea").checked()


def join(server: BundledServer, group: str) -> None:
    with closing(Asker(Address.parse(server.address))) as asker:
        asker.ask(HeartBeat(), HeartbeatData(client_id="one", consumer_data_set=(ConsumerData(group_name=group),)))


def test_topics_of_every_kind(bundled: BundledServer, rocketmq_cluster: Cluster) -> None:
    for number in range(TOPICS):
        make(bundled, f"made-{number}")
        assert queues(rocketmq_cluster, f"made-{number}") == [4, 4]
        send(bundled, f"sent-{number}")
        assert queues(rocketmq_cluster, f"sent-{number}") == [4, 4]
        join(bundled, f"group-{number}")
        assert queues(rocketmq_cluster, f"%RETRY%group-{number}") == [1, 1]
    make(bundled, "made-0", 6)
    assert queues(rocketmq_cluster, "made-0") == [6, 6]


def test_a_name_server_that_comes_back_learns_all_topics(bundled: BundledServer, rocketmq_cluster: Cluster) -> None:
    _, second = rocketmq_cluster.names
    make(bundled, "before")
    second.kill()
    began = time.monotonic()
    make(bundled, "meanwhile")
    assert time.monotonic() - began < 5
    second.start()
    wait_until(lambda: queues(rocketmq_cluster, "meanwhile") == [4, 4], "it knows what it missed")
    assert queues(rocketmq_cluster, "before") == [4, 4]
    make(bundled, "later")
    assert queues(rocketmq_cluster, "later") == [4, 4]
