"""RocketMQ's own administration tool, ``mqadmin`` of both releases, on the broker."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from servers import Server, committed, limit_retries, wait_until

from metaq import RocketMQ
from peers.rocketmq.admin import Admin
from peers.rocketmq.clients import Client, client
from peers.rocketmq.conversation import Conversation
from peers.rocketmq.jars import Unavailable, release

pytestmark = [pytest.mark.process, pytest.mark.slow]

Topic = Callable[[int], str]
CLIENTS = ("java-4.9.7", "java-5.5.0")
"""Those that have this tool."""


@pytest.fixture
def admin(client_name: str, server: Server, tmp_path: Path) -> Admin:
    """The tool of the release."""
    try:
        return Admin(release(client_name.removeprefix("java-")), tmp_path, server.name_servers)
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture
def producer(server: Server, tmp_path: Path) -> Iterator[Conversation]:
    """Sends for the tests."""
    with Conversation(client("java-4.9.7"), server.name_servers, tmp_path, role="producer", group="admin") as made:
        yield made.ready()


def rows(said: str, first: str) -> list[list[str]]:
    """The words of the lines that begin with ``first``."""
    return [line.split() for line in said.splitlines() if line.startswith(first)]


@pytest.mark.feature("mqadmin")
def test_the_cluster_and_its_broker_are_shown(server: Server, admin: Admin) -> None:
    listed = admin.run("clusterList")
    (line,) = rows(listed, "DefaultCluster")
    assert line[1:4] == ["broker-a", "0", server.broker_address]
    status = admin.run("brokerStatus", "-b", server.broker_address)
    values = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    assert {"brokerVersionDesc", "bootTimestamp", "putTps"} <= {key.strip() for key in values}


@pytest.mark.feature("mqadmin")
def test_a_topic_is_made_changed_and_shown(
    server: Server, admin: Admin, producer: Conversation, topic: Topic, group: str
) -> None:
    name = f"made-by-{group}"
    for queues in ("2", "3"):
        admin.run("updateTopic", "-b", server.broker_address, "-t", name, "-r", queues, "-w", queues)
    wait_until(lambda: '"writeQueueNums":3' in re.sub(r"\s", "", admin.run("topicRoute", "-t", name)), "a route")
    for number in range(6):
        producer.send(name, f"body-{number}", order=number)
    status = rows(admin.run("topicStatus", "-t", name), "broker-a")
    assert [line[1:4] for line in sorted(status)] == [["0", "0", "2"], ["1", "0", "2"], ["2", "0", "2"]]


@pytest.mark.feature("mqadmin")
def test_a_message_is_found_by_its_id_and_by_its_key(
    admin: Admin, producer: Conversation, topic: Topic, group: str
) -> None:
    name = topic(2)
    sent = producer.send(name, "body", tag="red", key=f"key-{group}", property="p")
    producer.send(name, "other", key="other")
    by_place = admin.run("queryMsgById", "-i", sent["place"], *_topic_of_5(admin, name))
    assert all(each in by_place for each in (name, "red", f"key-{group}"))
    wait_until(lambda: sent["id"] in admin.run("queryMsgByKey", "-t", name, "-k", f"key-{group}"), "the key")
    (line,) = rows(admin.run("queryMsgByKey", "-t", name, "-k", f"key-{group}"), sent["id"])
    assert line[:3] == [sent["id"], sent["queue"], sent["offset"]]  # 5.x has more behind it
    assert sent["id"] in admin.run("queryMsgByUniqueKey", "-t", name, "-i", sent["id"])


def _topic_of_5(admin: Admin, name: str) -> tuple[str, ...]:
    """The 5.x tool wants the topic, too."""
    return () if admin.release.version.startswith("4") else ("-t", name)


@pytest.mark.feature("mqadmin")
def test_the_progress_of_a_group_is_shown(
    server: Server, admin: Admin, producer: Conversation, topic: Topic, group: str, tmp_path: Path
) -> None:
    name, java = topic(1), _java(admin)
    with Conversation(java, server.name_servers, tmp_path, role="push", group=group, topic=name) as consumer:
        consumer.ready()
        for number in range(5):
            producer.send(name, f"body-{number}")
        consumer.wait_for(lambda: len(consumer.bodies()) == 5, "the messages")
        wait_until(lambda: committed(server, group, name, 1) == 5, "the group's position")
        consumer.close()
    for number in range(2):
        producer.send(name, f"more-{number}")

    def shown() -> list[list[str]]:
        return [line[:6] for line in rows(admin.run("consumerProgress", "-g", group), name)]

    wait_until(lambda: [line[3:5] for line in shown()] == [["7", "5"]], "broker offset 7 and consumer offset 5")


def _java(admin: Admin) -> Client:
    return client(f"java-{admin.release.version}")


@pytest.mark.feature("mqadmin")
def test_a_python_producer_is_shown(server: Server, admin: Admin, topic: Topic, group: str) -> None:
    name = topic(2)
    with RocketMQ(server.name_servers) as mq:
        mq.producer(group=group).send(name, "one tea")
        found: list[list[str]] = []

        def shown() -> bool:
            found.clear()
            with suppress(RuntimeError):  # the broker does not know the group yet
                found.extend(rows(admin.run("producerConnection", "-g", group, "-t", name), "00"))
            return bool(found)

        wait_until(shown, "the producer is shown", deadline_s=90.0)
    assert "@" in found[0][1]
    assert "PYTHON" in found[0]


@pytest.mark.feature("mqadmin")
def test_a_group_that_was_never_online_is_placed(
    server: Server, admin: Admin, producer: Conversation, topic: Topic, group: str, server_name: str
) -> None:
    if server_name != "ours":
        pytest.skip("4.9.7 refuses new offsets for such a group")
    name = topic(2)
    for number in range(6):
        producer.send(name, f"body-{number}")
    limit_retries(server, group, 16)  # the group is made
    admin.run("resetOffsetByTime", "-g", group, "-t", name, "-s", "-1")
    wait_until(lambda: committed(server, group, name, 2) == 6, "the group is at the end")
