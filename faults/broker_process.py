"""The broker under test: a real process with a folder of its own, started, killed, stopped and suspended by its pid."""

from __future__ import annotations

import contextlib
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from metaq.model import Address

READY: Final = re.compile(r"metaq-broker \S+ ready on (\S+), data in .+")
START_PATIENCE_S: Final = 120.0
STOP_PATIENCE_S: Final = 120.0
COMPLAINTS: Final = re.compile(r"Traceback|never retrieved|never awaited|unhandled|Exception ignored|AssertionError")


class BrokerTrouble(Exception):
    """The broker did not start or stop as it should."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The contents of a test's server.ini; ``extra`` are further keys of ``[system]``."""

    topics: Mapping[str, int]
    """Topic -> number of partitions."""
    segment_bytes_max: int = 64 << 10
    transfer_bytes_max: int = 256 << 10
    extra: Mapping[str, object] = field(default_factory=dict)
    rocketmq: bool = False
    """Whether it serves RocketMQ's clients, too."""
    zookeeper: str | None = None
    """The ZooKeeper to register at; ``None``: none."""
    root: str = "/meta"
    """The path of the tree in ZooKeeper; sessions are short."""
    name_server: str = ""
    """The RocketMQ name server to register at; ``None``: the broker is its own name server."""

    def describe(self) -> str:
        """Return the settings that differ from the defaults, in one line."""
        return " ".join((f"maxSegmentSize={self.segment_bytes_max}", *(f"{k}={v}" for k, v in self.extra.items())))

    def ini(self, data: Path, rocketmq_port: int) -> str:
        """Return the text of the file; ``data`` is the data folder."""
        system = {
            "brokerId": 0,
            "numPartitions": 1,
            "dataPath": data,
            "unflushThreshold": 0,
            "unflushInterval": 1000,
            "maxSegmentSize": self.segment_bytes_max,
            "maxTransferSize": self.transfer_bytes_max,
            **self.extra,
        }
        lines = ["[system]", *(f"{key}={value}" for key, value in system.items()), "[zookeeper]"]
        if self.zookeeper is None:
            lines += ["zk.zkEnable=false"]
        else:
            lines += [f"zk.zkConnect={self.zookeeper}", f"zk.zkRoot={self.root}", "zk.zkSessionTimeoutMs=2000"]
        if self.rocketmq:
            lines += ["[rocketmq]", "enabled=true", "brokerIP1=127.0.0.1", f"port={rocketmq_port}"]
        if self.name_server:
            lines += [f"namesrvAddr={self.name_server}", "registerNameServerPeriod=1000"]
        for topic, partitions in self.topics.items():
            lines += [f"[topic={topic}]", f"numPartitions={partitions}"]
        return "\n".join(lines) + "\n"


class BrokerProcess:
    """One broker: the same configuration, data and port through all its runs. Its standard error is logged to ``log``.
    """

    def __init__(self, folder: Path, settings: ServerSettings, data: Path | None = None) -> None:
        """Write ``folder``/server.ini; start nothing. ``data`` defaults to ``folder``/data."""
        folder.mkdir(parents=True, exist_ok=True)
        self.data = data or folder / "data"
        self.log = folder / "broker.log"
        self.address = Address("127.0.0.1", _free_port())
        self.files_max: int | None = None
        """Limit of the process's open files; ``None`` = the limit of this process."""
        self._configuration = folder / "server.ini"
        rocketmq = Address("127.0.0.1", _free_port())
        self.rocketmq = rocketmq if settings.rocketmq else None
        """The address for RocketMQ's clients."""
        self._configuration.write_text(settings.ini(self.data, rocketmq.port))
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        return self._running.pid

    @property
    def alive(self) -> bool:
        """Whether the process exists; a suspended one does."""
        return self._process is not None and self._process.poll() is None

    def begin(self) -> None:
        """Start the process without waiting until it is ready."""
        command = [sys.executable, "-m", "metaq_broker.cli", "start", "-f", str(self._configuration)]
        if self.files_max is not None:  # prlimit, not a function between fork and exec: this process has threads
            command = ["prlimit", f"--nofile={self.files_max}:{self.files_max}", *command]
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                [*command, "--port", str(self.address.port)], stdout=subprocess.PIPE, stderr=log, text=True
            )

    def start(self) -> float:
        """Start the process; return the seconds until it was ready.

        Raises:
            BrokerTrouble: It exited, or is not ready in ``START_PATIENCE_S``; then it is killed.
        """
        began = time.monotonic()
        self.begin()
        out = self._running.stdout
        assert out is not None
        with selectors.DefaultSelector() as selector:
            selector.register(out, selectors.EVENT_READ)
            line = out.readline().strip() if selector.select(START_PATIENCE_S) else ""
        if READY.fullmatch(line) is None:
            self.kill()
            raise BrokerTrouble(f"the broker did not become ready, printed {line!r}; its log ends:\n{self.log_tail()}")
        return time.monotonic() - began

    def kill(self) -> None:
        """Send SIGKILL, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._reap(self._process, STOP_PATIENCE_S)

    def stop(self) -> float:
        """Send SIGTERM; return the seconds until it ended.

        Raises:
            BrokerTrouble: It does not end in ``STOP_PATIENCE_S`` (it is killed), or its exit status is not 0.
        """
        process, began = self._running, time.monotonic()
        process.send_signal(signal.SIGTERM)
        try:
            status = self._reap(process, STOP_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerTrouble(f"the broker did not stop within {STOP_PATIENCE_S:g} s of SIGTERM") from None
        if status != 0:
            raise BrokerTrouble(f"the broker ended with status {status} on SIGTERM:\n{self.log_tail()}")
        return time.monotonic() - began

    def suspend(self) -> None:
        """Send SIGSTOP: its sockets stay open and it does not answer."""
        self._running.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Send SIGCONT."""
        self._running.send_signal(signal.SIGCONT)

    def resident_bytes(self) -> int:
        """Return the resident memory of the process (VmRSS)."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        match = re.search(r"VmRSS:\s+(\d+) kB", status)
        return int(match[1]) << 10 if match else 0

    def complaints(self) -> list[str]:
        """Return the lines of its log that report bugs of the broker."""
        return [line for line in self.log.read_text(errors="replace").splitlines() if COMPLAINTS.search(line)]

    def log_tail(self, lines: int = 15) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    @property
    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise BrokerTrouble("the broker was not started")
        return self._process

    def _reap(self, process: subprocess.Popen[str], patience_s: float) -> int:
        status = process.wait(patience_s)
        if process.stdout is not None:
            with contextlib.suppress(OSError):
                process.stdout.close()
        if process is self._process:
            self._process = None
        return status


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
