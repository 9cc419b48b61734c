"""The servers that the clients of these tests talk to: this project's broker, and RocketMQ 4.9.7 as the reference."""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Protocol, Self

from peers.rocketmq.ask import Answer, ask
from peers.rocketmq.jvm import free_port
from peers.rocketmq.servers import GET_ROUTE, UPDATE_TOPIC, Cluster

CHECK_INTERVAL_MS: Final = 1000
CHECKS_MAX: Final = 1000
"""A client may need half a minute until the broker knows it by its heartbeat."""

DEADLINE_S: Final = 30.0
UPDATE_GROUP: Final = 200

SERVER_INI: Final = """\
[system]
brokerId=0
serverPort={metaq_port}
dataPath={data}
numPartitions=4
hostName=127.0.0.1
[rocketmq]
enabled=true
port={port}
brokerIP1=127.0.0.1
brokerName=broker-a
transactionTimeOut={check_ms}
transactionCheckInterval={check_ms}
transactionCheckMax={checks_max}
{more}
"""


class Server(Protocol):
    """A broker with its name server. It keeps its port and its messages over ``restart``."""

    @property
    def name(self) -> str:
        """``ours`` or the release."""

    @property
    def name_servers(self) -> str:
        """What clients are given."""

    @property
    def broker_address(self) -> str:
        """The broker's own, ``host:port``."""

    def create_topic(self, topic: str, queues: int) -> None:
        """Make a topic and wait until it has a route."""

    def restart(self) -> None:
        """Stop it as an operator does, start it, and wait until it serves."""


class RealServer:
    """RocketMQ's own name server and broker."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.name = cluster.release.version
        cluster.start_name_server()
        check = {"transactionTimeOut": CHECK_INTERVAL_MS, "transactionCheckInterval": CHECK_INTERVAL_MS}
        check["transactionCheckMax"] = CHECKS_MAX
        self._broker = cluster.start_broker("broker-a", **check)

    @property
    def name_servers(self) -> str:
        """As ``Server``."""
        return self._cluster.name_servers

    @property
    def broker_address(self) -> str:
        """As ``Server``."""
        return self._broker.address

    def create_topic(self, topic: str, queues: int) -> None:
        """As ``Server``."""
        self._cluster.create_topic(topic, queues)

    def restart(self) -> None:
        """As ``Server``."""
        self._broker.stop()
        self._broker.start()


class OurServer:
    """``metaq-broker start`` with ``[rocketmq]``: name server and broker on one port, MetaQ on another."""

    name = "ours"

    def __init__(self, folder: Path, more: str = "") -> None:
        self._folder = folder
        self.port, self.metaq_port = free_port(), free_port()
        self.data = folder / "data"
        self.data.mkdir(parents=True, exist_ok=True)
        self._file = folder / "server.ini"
        keys = {"metaq_port": self.metaq_port, "port": self.port, "data": self.data, "check_ms": CHECK_INTERVAL_MS}
        self._file.write_text(SERVER_INI.format(**keys, checks_max=CHECKS_MAX, more=more))
        self.process: subprocess.Popen[str] | None = None
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def name_servers(self) -> str:
        """As ``Server``."""
        return f"127.0.0.1:{self.port}"

    @property
    def broker_address(self) -> str:
        """As ``Server``."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it and wait until it says that it is ready."""
        command = [sys.executable, "-m", "metaq_broker.cli", "start", "-f", str(self._file)]
        with (self._folder / "broker.log").open("a") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], DEADLINE_S)
        said = self.process.stdout.readline() if readable else ""
        assert "ready" in said, f"the broker did not start: {said}{self.log()}"

    def stop(self) -> None:
        """Stop it as an operator does."""
        assert self.process is not None
        self.process.terminate()
        assert self.process.wait(DEADLINE_S) == 0, self.log()
        self.kill()

    def kill(self) -> None:
        """``kill -9`` if it runs."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(DEADLINE_S)
            assert self.process.stdout is not None
            self.process.stdout.close()
            self.process = None

    def restart(self) -> None:
        """As ``Server``."""
        self.stop()
        self.start()

    def log(self) -> str:
        """What it wrote."""
        return (self._folder / "broker.log").read_text()

    def create_topic(self, topic: str, queues: int) -> None:
        """As ``Server``."""
        create_topic(self.broker_address, topic, queues)


def create_topic(address: str, topic: str, queues: int) -> None:
    """Make a topic at a broker that is its own name server."""
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": queues,
        "writeQueueNums": queues,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": "false",
    }
    ask(address, UPDATE_TOPIC, fields).checked()
    wait_until(lambda: _queues(address, topic) == queues, f"a route of {topic}")


def _queues(address: str, topic: str) -> int:
    answer = ask(address, GET_ROUTE, {"topic": topic, "acceptStandardJsonOnly": "true"})
    return 0 if answer.code else sum(each["writeQueueNums"] for each in json.loads(answer.body)["queueDatas"])


def limit_retries(server: Server, group: str, retries: int) -> Answer:
    """Make a consumer group whose messages are delivered ``retries`` times again before they are dead letters."""
    group_settings: Mapping[str, object] = {
        "groupName": group,
        "consumeEnable": True,
        "consumeFromMinEnable": True,
        "consumeBroadcastEnable": True,
        "retryQueueNums": 1,
        "retryMaxTimes": retries,
        "brokerId": 0,
        "whichBrokerWhenConsumeSlowly": 1,
        "notifyConsumerIdsChangedEnable": True,
    }
    return ask(server.broker_address, UPDATE_GROUP, body=json.dumps(group_settings).encode()).checked()


def wait_until(condition: Callable[[], object], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Wait until it is true."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"waited {deadline_s:g} s for {what}"
        time.sleep(0.05)
