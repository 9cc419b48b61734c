"""The bundled broker's announcement, through RocketMQ's own name servers: kept, handed out, and no client minds."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from fix_broker import wait_until

from metaq.backends.rocketmq.pool import SessionPool
from metaq.discovery.name_server import NameServerDirectory
from metaq.model import Address
from peers.rocketmq.bundled import BundledServer
from peers.rocketmq.programs import Programs
from peers.rocketmq.servers import Cluster

pytestmark = pytest.mark.slow


def test_a_java_name_server_hands_out_what_the_broker_is(rocketmq_cluster: Cluster, tmp_path: Path) -> None:
    rocketmq_cluster.start_name_server()
    settings = {"namesrvAddr": rocketmq_cluster.name_servers, "registerNameServerPeriod": 1000}
    (name_server,) = map(Address.parse, rocketmq_cluster.name_servers.split(";"))
    with BundledServer(tmp_path / "ours", settings, topics=("orders",)) as server, closing(SessionPool()) as pool:
        here, metaq = Address.parse(server.address), Address.parse(server.metaq_address)
        directory = NameServerDirectory([name_server], pool)

        def is_announced() -> bool:
            directory.invalidate()
            found = directory.metaq_broker(here) if directory.topics() and directory.queues("orders") else None
            return found is not None and (found.broker_id, found.address) == (0, metaq)

        wait_until(is_announced, "the name server has it")
        programs = Programs(rocketmq_cluster.release, rocketmq_cluster.name_servers)
        programs.write("orders", 100)
        assert programs.pull_rates("orders", runs=1)[-1].messages == 100
