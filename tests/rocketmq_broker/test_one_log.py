"""One log, two protocols: producers and consumers of every kind, MetaQ's among them, on one topic."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from servers import OurServer, Server

from metaq.client.metaq import MetaQ
from metaq.model import Partition
from peers.rocketmq.clients import NAMES, Client, client
from peers.rocketmq.conversation import Conversation
from peers.rocketmq.jars import Unavailable

pytestmark = [pytest.mark.process, pytest.mark.slow]

QUEUES = 2
MESSAGES = 4


def kinds() -> list[Client]:
    """Those that can be had; skips where that is none."""
    found = []
    for name in NAMES:
        try:
            found.append(client(name))
        except Unavailable as reason:
            print(reason)
    if not found:
        pytest.skip("no client can be had")
    return found


def test_everybody_reads_what_everybody_sends(
    server: Server, topic: Callable[[int], str], group: str, tmp_path: Path
) -> None:
    if not isinstance(server, OurServer):
        pytest.skip("only our broker serves MetaQ's clients")
    name, there = topic(QUEUES), kinds()
    expected: set[str] = set()
    with ExitStack() as stack:

        def start(kind: Client, **arguments: object) -> Conversation:
            return stack.enter_context(Conversation(kind, server.name_servers, tmp_path, **arguments)).ready()

        groups = [f"{group}-{number}" for number in range(len(there))]
        pairs = zip(there, groups, strict=True)
        consumers = [start(kind, role="push", group=each, topic=name) for kind, each in pairs]
        mq = stack.enter_context(MetaQ(server.metaq_address))
        for number in range(MESSAGES):
            mq.producer().send(name, f"metaq-{number}", attribute="red", partition=Partition(0, number % QUEUES))
            expected.add(f"metaq-{number}")
        for kind in there:
            producer = start(kind, role="producer", group="producers")
            for number in range(MESSAGES):
                producer.send(name, f"{kind.name}-{number}", tag="red")
                expected.add(f"{kind.name}-{number}")
            producer.close()
        for consumer in consumers:
            consumer.wait_for(lambda consumer=consumer: expected <= set(consumer.bodies()), expected)
            assert sorted(consumer.bodies()) == sorted(expected)
            assert {event["tag"] for event in consumer.of("message")} == {"red"}
        read = [(message.data.decode(), message.attribute) for message in mq.browse(name)]
        assert sorted(read) == sorted((body, "red") for body in expected)
