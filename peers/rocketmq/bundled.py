"""This project's broker for the programs of this package: name server and broker on one port, MetaQ on another."""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from metaq.testing.ports import free_port
from peers.rocketmq.ask import ask
from peers.rocketmq.servers import GET_ROUTE, UPDATE_TOPIC

DEADLINE_S: Final = 120.0
TOPIC_DEADLINE_S: Final = 120.0

SYSTEM: Final = {
    "brokerId": 0,
    "hostName": "127.0.0.1",
    "numPartitions": 4,
    "unflushThreshold": 0,
    "unflushInterval": 1000,
    "maxSegmentSize": 1 << 28,
    "maxTransferSize": 1 << 20,
    "diskFreeMinBytes": 0,
}
ROCKETMQ: Final = {"enabled": "true", "brokerIP1": "127.0.0.1", "brokerName": "broker-a"}
"""Default keys of ``[rocketmq]``."""


class BundledServer:
    """``metaq-broker start`` with ``[rocketmq]``. Ports stay the same over restarts.

    ``settings`` are keys of ``[rocketmq]``, ``system`` of ``[system]``, ``topics`` are topics of ``server.ini``,
    ``more`` are other sections.
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, object],
        system: Mapping[str, object] = {},
        topics: Sequence[str] = ("test",),
        more: Mapping[str, Mapping[str, object]] = {},
    ) -> None:
        self._folder = folder
        self.port, self.metaq_port = free_port(), free_port()
        self.data = folder / "data"
        self.data.mkdir(parents=True, exist_ok=True)
        self._file = folder / "server.ini"
        sections = {
            "system": {**SYSTEM, "serverPort": self.metaq_port, "dataPath": self.data, **system},
            "rocketmq": {**ROCKETMQ, "port": self.port, **settings},
            **{f"topic={topic}": {} for topic in topics},
            **more,
        }
        self._file.write_text("".join(_section(name, keys) for name, keys in sections.items()))
        self._process: subprocess.Popen[str] | None = None
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def address(self) -> str:
        """The address of name server and broker, ``host:port``."""
        return f"127.0.0.1:{self.port}"

    @property
    def metaq_address(self) -> str:
        """The address for MetaQ's clients."""
        return f"127.0.0.1:{self.metaq_port}"

    @property
    def pid(self) -> int:
        """The process id.

        Raises:
            RuntimeError: It does not run.
        """
        if self._process is None:
            raise RuntimeError("the broker does not run")
        return self._process.pid

    @property
    def log(self) -> str:
        """What it has written to standard error."""
        return (self._folder / "broker.log").read_text()

    def start(self) -> None:
        """Start it and wait until it is ready.

        Raises:
            RuntimeError: It ended, or is not ready in time; with its log.
        """
        command = [sys.executable, "-m", "metaq_broker.cli", "start", "-f", str(self._file)]
        with (self._folder / "broker.log").open("a") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], DEADLINE_S)
        said = self._process.stdout.readline() if readable else ""
        if "ready" not in said:
            self.kill()
            raise RuntimeError(f"the broker did not start: {said}{self.log}")

    def stop(self) -> None:
        """Terminate it and wait.

        Raises:
            RuntimeError: Its exit status is not 0.
        """
        assert self._process is not None
        self._process.terminate()
        status = self._process.wait(DEADLINE_S)
        self.kill()
        if status:
            raise RuntimeError(f"the broker ended with {status}: {self.log}")

    def kill(self) -> None:
        """Send SIGKILL if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(DEADLINE_S)
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    def create_topic(self, topic: str, queues: int) -> None:
        """Create or change a topic, and wait until it has a route.

        Raises:
            RuntimeError: It is refused, or has no route in time.
        """
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
        ask(self.address, UPDATE_TOPIC, fields).checked()
        end = time.monotonic() + TOPIC_DEADLINE_S
        while self._queues(topic) != queues:
            if time.monotonic() > end:
                raise RuntimeError(f"topic {topic} has no route with {queues} queues")
            time.sleep(0.02)

    def _queues(self, topic: str) -> int:
        answer = ask(self.address, GET_ROUTE, {"topic": topic, "acceptStandardJsonOnly": "true"})
        return 0 if answer.code else sum(each["writeQueueNums"] for each in json.loads(answer.body)["queueDatas"])


def _section(name: str, keys: Mapping[str, object]) -> str:
    return f"[{name}]\n" + "".join(f"{key}={value}\n" for key, value in keys.items())
