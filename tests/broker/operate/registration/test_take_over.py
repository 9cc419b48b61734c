"""A member of a pair that was elected takes over the nodes of its predecessor, which may be deleting them meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest
from fix_broker import system_section
from metaq_broker.log.files.files import Files
from metaq_broker.operate.config.configuration import parse
from metaq_broker.operate.registration.own_session import OwnSession
from metaq_broker.operate.registration.registration import Registration
from metaq_broker.operate.registration.wanted import BrokerNodes, broker_nodes
from waiting import in_loop

from metaq.discovery.zk_client import Node
from metaq.errors import ZooKeeperChanged
from metaq.model import Address

ADDRESS = Address("127.0.0.1", 8123)


@in_loop
async def test_nodes_that_vanish_while_they_are_taken_over_are_taken_at_the_next_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = parse(f"{system_section(3)}[topic=t]\n[zookeeper]\nzk.zkConnect=127.0.0.1:1\n".encode())
    wanted = broker_nodes("/meta", config, ADDRESS, {})
    registration = Registration(config.zookeeper, lambda: wanted, OwnSession(Files(), tmp_path), takes_over=True)
    attempts = list[BrokerNodes]()

    def claim(nodes: BrokerNodes) -> Node | None:
        attempts.append(nodes)
        if len(attempts) == 1:
            raise ZooKeeperChanged("127.0.0.1:1", nodes.own, "NoNodeError")
        return None

    monkeypatch.setattr(registration._client, "start", registration._connected.set)
    monkeypatch.setattr(registration._tree, "claim", claim)
    await registration.claim()
    assert attempts == [wanted, wanted]
