"""A Java client that sends and locks by the port two below the broker's, as those before 4.5 do by default."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from servers import Server

from peers.rocketmq.clients import Client
from peers.rocketmq.conversation import Conversation

pytestmark = [pytest.mark.process, pytest.mark.slow]

CLIENTS = ["java-4.9.7"]
VIP = "-Dcom.rocketmq.sendMessageWithVIPChannel=true"
TEXTS = [f"body-{number}" for number in range(12)]


def test_an_ordered_consumer_gets_what_was_sent(
    server: Server, kind: Client, topic: Callable[[int], str], group: str, tmp_path: Path
) -> None:
    name, old = topic(4), replace(kind, program=(kind.program[0], VIP, *kind.program[1:]))
    with (
        Conversation(old, server.name_servers, tmp_path, role="producer", group="producers") as producer,
        Conversation(old, server.name_servers, tmp_path, role="ordered", group=group, topic=name) as consumer,
    ):
        producer.ready()
        consumer.ready()
        for text in TEXTS:
            producer.send(name, text)
        consumer.wait_for(lambda: sorted(consumer.bodies()) == sorted(TEXTS), TEXTS)
        consumer.close()
