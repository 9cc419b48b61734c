"""The two brokers of a pair and their ZooKeeper, as processes: started, killed, frozen, and asked how they are."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from faults.broker_process import BrokerTrouble
from metaq.backends.metaq.session import Session
from metaq.discovery.stats import parse_figures
from metaq.errors import MetaqError
from metaq.model import Address
from metaq.net.transport import Timeouts
from metaq.testing.ports import free_port
from peers.jvm import ends_with_us
from peers.zookeeper import ZooKeeperServer

PATIENCE_S: Final = 90.0
ANSWER: Final = Timeouts(1.0, 2.0)
TICK_MS: Final = 200
FAMILIES: Final = ("brokers", "zookeeper", "transactions", "rocketmq", "half-messages")
TOPICS: Final = (*FAMILIES, *(f"copy-of-{name}" for name in FAMILIES))


class PairZooKeeper(ZooKeeperServer):
    """A server that listens at ``host`` only. ``command`` is a prefix, such as ``ip netns exec``."""

    def __init__(self, folder: Path, host: str, command: Sequence[str] = ()) -> None:
        self.host = host
        super().__init__(folder, TICK_MS)
        config = folder / "zoo.cfg"
        config.write_text(config.read_text().replace("clientPortAddress=127.0.0.1", f"clientPortAddress={host}"))
        self._command = [*command, *self._command]

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


class Member:
    """One broker process of the pair. ``command`` is a prefix, such as ``ip netns exec``."""

    def __init__(self, name: str, folder: Path, host: str, command: Sequence[str] = ()) -> None:
        self.name, self.folder, self.data, self.command = name, folder, folder / "data", command
        self.address, self.rocketmq = Address(host, free_port()), Address(host, free_port())
        self._process: subprocess.Popen[bytes] | None = None

    def configure(
        self,
        other: Member,
        zookeeper: PairZooKeeper,
        session_ms: int,
        topics: Sequence[str] = TOPICS,
        rocketmq: str = "",
    ) -> None:
        """Write the file: the same for both members, but for addresses and folders.

        ``rocketmq``: further lines of ``[rocketmq]``.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        sections = "".join(f"[topic={topic}]\nnumPartitions=2\n" for topic in topics)
        (self.folder / "server.ini").write_text(
            f"[system]\nbrokerId=0\nnumPartitions=2\nserverPort={self.address.port}\nhostName={self.address.host}\n"
            f"bindAddress={self.address.host}\ndataPath={self.data}\nunflushThreshold=0\nunflushInterval=1000\n"
            "maxSegmentSize=1048576\nmaxTransferSize=1048576\n"
            f"[zookeeper]\nzk.zkConnect={zookeeper.address}\nzk.zkSyncTimeMs=0\n"
            f"[pair]\nother={other.address}\nsessionMs={session_ms}\nanswerTimeoutMs=1000\n"
            f"[rocketmq]\nenabled=true\nport={self.rocketmq.port}\nbrokerIP1={self.address.host}\n"
            f"transactionTimeOut=2000\ntransactionCheckInterval=2000\nvipPort=false\n{rocketmq}{sections}"
        )

    @property
    def runs(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        """Start the process; do not wait for anything."""
        file = str(self.folder / "server.ini")
        command = [*ends_with_us(), *self.command, sys.executable, "-m", "metaq_broker.cli", "start", "-f", file]
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)

    def signal(self, number: int) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        """Send SIGKILL, also to a frozen process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def stats(self) -> dict[str, str]:
        """Return the lines of ``stats replication``; empty if it does not answer."""
        try:
            with contextlib.closing(Session.connect(self.address, ANSWER)) as session:
                return parse_figures(session.stats(["replication"])["replication"])
        except MetaqError:
            return {}

    def log_tail(self, lines: int = 30) -> list[str]:
        return (self.folder / "log").read_text(errors="replace").splitlines()[-lines:]

    def segments(self) -> dict[str, bytes]:
        """Return the segments with bytes, by their paths."""
        paths = sorted(self.data.glob("*-[0-9]/*.meta"))
        return {str(path.relative_to(self.data)): content for path in paths if (content := path.read_bytes())}


class Pair:
    """Members ``a`` and ``b``."""

    def __init__(self, a: Member, b: Member) -> None:
        self.a, self.b = a, b
        self.members = (a, b)

    def other(self, member: Member) -> Member:
        return self.b if member is self.a else self.a

    def master(self) -> Member | None:
        """Return the member that says that it is the master of the latest epoch."""
        found = [
            (int(stats["epoch"]), each) for each in self.members if (stats := each.stats()).get("role") == "master"
        ]
        return max(found, key=lambda one: one[0])[1] if found else None

    def wait_whole(self) -> Member:
        """Return the master, once both members are in sync and it has no damage that the other one heals.

        Raises:
            BrokerTrouble: They are not within ``PATIENCE_S``.
        """
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            stats = {each: each.stats() for each in self.members}
            for each, said in stats.items():
                is_master = said.get("role") == "master" and "," in said.get("in_sync", "") and "trouble" not in said
                there = stats[self.other(each)]
                if is_master and there.get("role") == "in_sync_slave" and there["epoch"] == said["epoch"]:
                    return each
            time.sleep(0.05)
        tails = [line for each in self.members for line in (f"-- {each.name}", *each.log_tail())]
        raise BrokerTrouble("\n".join(["the pair is not whole again:", str([*stats.values()]), *tails]))

    def wait_alone(self, master: Member) -> None:
        """Return when ``master`` goes on alone. Raises ``BrokerTrouble``."""
        end = time.monotonic() + PATIENCE_S
        while (said := master.stats()).get("role") != "master" or "," in said.get("in_sync", ","):
            if time.monotonic() > end:
                raise BrokerTrouble(f"{master.name} does not go on alone: {said}")
            time.sleep(0.05)

    def wait_equal(self) -> None:
        """Return when both copies are the same bytes. Raises ``BrokerTrouble``."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            if self.a.segments() == self.b.segments():
                return
            time.sleep(0.05)
        raise BrokerTrouble("the copies differ")
