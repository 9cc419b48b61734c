"""RocketMQ of a release, or this project's broker, with a topic, messages, and clients that stay connected."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from peers.rocketmq.bundled import BundledServer
from peers.rocketmq.clients import Client, client
from peers.rocketmq.conversation import Conversation, Event
from peers.rocketmq.jars import release
from peers.rocketmq.servers import Cluster

TOPIC, GROUP, MESSAGES = "sweep", "sweep-consumers", 4
SEND_DEADLINE_S: Final = 60.0


@contextmanager
def served(version: str, ours: bool, folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the addresses of name server and broker, with the topic created."""
    if ours:
        with BundledServer(folder / "broker", {}) as server:
            server.create_topic(TOPIC, 2)
            yield server.address, server.address
        return
    with Cluster(release(version), folder / "cluster") as cluster:
        cluster.start_name_server()
        broker = cluster.start_broker("broker-a", autoCreateTopicEnable="true")
        cluster.create_topic(TOPIC, 2)
        yield cluster.name_servers, broker.address


def filled(name_server: str, broker: str, folder: Path, clients: ExitStack) -> dict[str, str]:
    """Return the values of the words in braces. A producer and a consumer keep running, and the topic has messages."""
    java = client("java-4.9.7")
    consumer = _ready(clients, java, name_server, folder, role="push", group=GROUP, topic=TOPIC)
    producer = _ready(clients, java, name_server, folder, role="producer", group="producers")
    sent = [_send(producer, number) for number in range(MESSAGES)]
    consumer.wait_for(lambda: len(consumer.bodies()) == MESSAGES, "the messages")
    topics, groups = folder / "topics.json", folder / "groups.json"
    topics.write_text(json.dumps([{"topicName": "made-first", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}]))
    groups.write_text(json.dumps([{"groupName": "made-first", "consumeEnable": True}]))
    first = sent[1]
    return {
        "name_server": name_server,
        "broker": broker,
        "cluster": "DefaultCluster",
        "topic": TOPIC,
        "group": GROUP,
        "place": first["place"],
        "id": first["id"],
        "queue": first["queue"],
        "offset": first["offset"],
        "folder": str(folder),
        "topics": str(topics),
        "groups": str(groups),
    }


def _ready(clients: ExitStack, kind: Client, name_server: str, folder: Path, **arguments: object) -> Conversation:
    """Start a client, with retries: on a busy machine Java's gives up its first question to the name server early."""
    end = time.monotonic() + SEND_DEADLINE_S
    while True:
        made = clients.enter_context(Conversation(kind, name_server, folder, **arguments))
        try:
            return made.ready()
        except RuntimeError:
            if time.monotonic() > end:
                raise


def _send(producer: Conversation, number: int) -> Event:
    """Send a message, with retries: on a busy machine a client gives up its first look-up of a route early."""
    end = time.monotonic() + SEND_DEADLINE_S
    while True:
        try:
            return producer.send(TOPIC, f"body-{number}", key=f"key-{number}", tag="tag")
        except RuntimeError:
            if time.monotonic() > end:
                raise
