"""``metaq create``, ``alter``, ``delete``: what changes at RocketMQ's brokers, and what MetaQ's cannot do."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from local_servers import broker_thread

from metaq.model import Address, Partition
from metaq.protocols.remoting.codes import ResponseCode
from metaq.protocols.remoting.headers.administration import UpdateAndCreateTopic
from metaq.protocols.remoting.headers.routes import DeleteTopicInNamesrv
from metaq.testing.memory import MemoryBroker
from metaq.testing.ports import free_port
from metaq.testing.rocketmq_server import ScriptedCluster
from metaq.testing.rocketmq_store import Topic

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(params=[False, True], ids=["4.9.7", "5.5"])
def cluster(request: pytest.FixtureRequest) -> Iterator[ScriptedCluster]:
    with ScriptedCluster(["broker-a", "broker-b"], is_v5=request.param) as cluster:
        yield cluster


def topic_at(cluster: ScriptedCluster, broker: str) -> Topic | None:
    return cluster.broker(broker).store.topics.get("orders")


def test_a_topic_is_made_changed_and_deleted(cluster: ScriptedCluster, rocketmq: str, command: Run) -> None:
    status, out, _ = command("-c", rocketmq, "create", "orders", "--partitions", "4")
    assert (status, out.splitlines()[1].split()) == (0, ["broker-a", "4", "4", "rw"])
    assert topic_at(cluster, "broker-b") == Topic(4, 4, 6)
    status, _, err = command("-c", rocketmq, "create", "orders")
    assert (status, err) == (2, "metaq: topic 'orders' exists at broker-a; metaq alter changes it\n")

    command("-c", rocketmq, "alter", "orders", "--write-partitions", "2", "--broker", "broker-b")
    assert (topic_at(cluster, "broker-a"), topic_at(cluster, "broker-b")) == (Topic(4, 4, 6), Topic(4, 2, 6))
    out = command("-c", rocketmq, "alter", "orders", "--permissions", "r", "--json")[1]
    assert json.loads(out.splitlines()[1]) == {
        "broker": "broker-b", "read_queues": 4, "write_queues": 2, "permissions": "r",
    }  # fmt: skip
    assert topic_at(cluster, "broker-a") == Topic(4, 4, 4)

    cluster.append("orders", Partition("broker-a", 3), [b"x"])
    status, out, err = command("-c", rocketmq, "delete", "orders")
    assert (status, err) == (0, "nothing is deleted; --execute does it\n")
    assert out.splitlines()[4].split() == ["broker-a:3", "0", "1", "1"]
    assert topic_at(cluster, "broker-a") is not None
    assert command("-c", rocketmq, "delete", "orders", "--execute")[2] == "the topic is deleted\n"
    assert (topic_at(cluster, "broker-a"), topic_at(cluster, "broker-b")) == (None, None)
    assert cluster.name_server.counts()[DeleteTopicInNamesrv.CODE] == 1


def test_queues_with_messages_are_not_hidden(cluster: ScriptedCluster, rocketmq: str, command: Run) -> None:
    cluster.create_topic("orders", 4)
    cluster.append("orders", Partition("broker-b", 3), [b"x", b"y"])
    status, _, err = command("-c", rocketmq, "alter", "orders", "--partitions", "2")
    assert (status, "nobody could read the 2 messages of broker-b:3" in err) == (2, True)
    assert topic_at(cluster, "broker-a") == Topic(4, 4, 6), "checked before anything is changed"
    assert command("-c", rocketmq, "alter", "orders", "--partitions", "2", "--broker", "broker-a")[0] == 0
    assert command("-c", rocketmq, "alter", "orders", "--partitions", "2", "--force")[0] == 0
    assert topic_at(cluster, "broker-b") == Topic(2, 2, 6)


def test_what_is_wrong_is_said(cluster: ScriptedCluster, rocketmq: str, command: Run) -> None:
    for arguments, status, says in [
        (["alter", "none", "--partitions", "2"], 1, "topic 'none' does not exist on "),
        (["delete", "none", "--execute"], 1, "topic 'none' does not exist"),
        (["alter", "orders"], 2, "alter: name --partitions, --write-partitions or --permissions"),
        (["create", "orders", "--partitions", "9999"], 2, "9999 queues: expected 1..1024"),
        (["create", "orders", "--broker", "c"], 2, "no broker 'c' is registered; there are broker-a, broker-b"),
    ]:
        found = command("-c", rocketmq, *arguments)
        assert (found[0], says in found[2]) == (status, True), found
    cluster.broker("broker-a").refuse(UpdateAndCreateTopic.CODE, ResponseCode.SYSTEM_ERROR, "read-only")
    status, _, err = command("-c", rocketmq, "create", "orders")
    assert (status, "refused setting up topic 'orders'" in err, err.count("\n")) == (1, True, 1)


@pytest.mark.parametrize("verb", ["create", "alter", "delete"])
def test_a_java_broker_cannot_do_it(verb: str, command: Run, memory: dict[Address, MemoryBroker]) -> None:
    address = Address("b0", 8123)
    memory[address] = MemoryBroker({"orders": 1})
    more = ["--partitions", "2"] if verb == "alter" else []
    status, _, err = command("-c", str(address), verb, "orders", *more)
    assert (status, err.count("\n")) == (2, 1)
    assert f"metaq: {verb}: broker {address} does not serve RocketMQ's requests, and MetaQ's protocol has none" in err
    assert "metaq-broker ctl" in err


def test_topics_of_bundled_brokers_named_as_metaq_s(tmp_path: Path, command: Run) -> None:
    port = free_port()
    with broker_thread(tmp_path, f"[rocketmq]\nenabled=true\nport={port}\n") as address:
        cluster = ("-c", str(address))
        status, out, _ = command(*cluster, "create", "orders", "--partitions", "3")
        assert (status, out.splitlines()[1].split()) == (0, ["metaq", "3", "3", "rw"])
        assert (
            command(*cluster, "create", "orders")[2]
            == "metaq: topic 'orders' exists at metaq; metaq alter changes it\n"
        )
        assert command(*cluster, "produce", "orders", *["-m", "x"] * 6)[0] == 0
        assert [row.split()[0] for row in command(*cluster, "describe", "orders")[1].splitlines()[1:]] == [
            "0-0", "0-1", "0-2",
        ]  # fmt: skip
        status, _, err = command(*cluster, "alter", "orders", "--partitions", "1")
        assert (status, "nobody could read the 2 messages of metaq:1" in err) == (2, True)
        assert command(*cluster, "alter", "orders", "--permissions", "r", "--broker", "0")[0] == 0
        status, _, err = command(*cluster, "alter", "orders", "--permissions", "r", "--broker", "7")
        assert (status, err) == (2, "metaq: no broker '7' is found; there are 0\n")
        assert command(*cluster, "delete", "orders", "--execute")[2] == "the topic is deleted\n"
        assert command(*cluster, "describe", "orders")[0] == 1
