"""Fixtures that start real broker processes and talk to them by raw bytes.

``start_broker`` starts one with any arguments and stops it at the end of the test; ``dev_broker`` is one that accepts
every topic. ``WireClient`` is the plainest possible client: it shows exactly what is on the wire.
"""

from __future__ import annotations

import re
import resource
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO

import pytest
from broker_forks import ForkedBroker, fork_broker

from metaq.model import Address
from metaq.protocols.text.commands import Reply, Result, Value
from metaq.protocols.text.decode import NEED_DATA, ReplyDecoder

DEADLINE_S = 60.0
READY = re.compile(r"metaq-broker \S+ ready on (\S+), data in (.+)")
ROCKETMQ = re.compile(r"RocketMQ clients: (\S+) is name server and broker\n")


@dataclass
class RunningBroker:
    """A broker process that has said that it is ready."""

    process: subprocess.Popen[str] | ForkedBroker
    address: Address
    data: Path
    log: IO[str]
    clients: list[WireClient] = field(default_factory=list)

    def client(self) -> WireClient:
        """Return a new connection to it, which ``end`` closes."""
        self.clients.append(WireClient(self.address))
        return self.clients[-1]

    @cached_property
    def rocketmq_address(self) -> Address:
        """Where it serves RocketMQ's clients: the line behind the one that said that it is ready."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        match = ROCKETMQ.fullmatch(line)
        assert match is not None, line
        return Address.parse(match[1])

    def stop(self) -> int:
        """Ask it to stop as an operator would; return its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(DEADLINE_S)

    def kill(self) -> None:
        """End it without warning, and close its output."""
        self.process.kill()
        self.process.wait(DEADLINE_S)
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.log.close()

    def end(self) -> None:
        """End it if it still runs, and close what belongs to it."""
        self.kill()
        for client in self.clients:
            client.close()

    def log_text(self) -> str:
        return Path(self.log.name).read_text()


@dataclass
class WireClient:
    """One connection, used by one test."""

    address: Address
    decoder: ReplyDecoder = field(default_factory=ReplyDecoder)

    def __post_init__(self) -> None:
        self.socket = socket.create_connection((self.address.host, self.address.port), DEADLINE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.closed_by_broker = False

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def reply(self) -> Reply:
        """Return the next reply; fails when the broker closes the connection instead."""
        while (reply := self.decoder.next_reply()) is NEED_DATA:
            chunk = self.socket.recv(1 << 20)
            assert chunk, "the broker closed the connection without the reply"
            self.decoder.receive_data(chunk)
        return reply

    def replies(self, count: int) -> list[Reply]:
        return [self.reply() for _ in range(count)]

    def ask(self, request: bytes) -> Reply:
        self.send(request)
        return self.reply()

    def result(self, request: bytes) -> tuple[int, str]:
        """Send one request and return code and text of its reply."""
        reply = self.ask(request)
        assert isinstance(reply, Result)
        return reply.code, reply.text

    def value(self, request: bytes) -> bytes:
        """Send one request and return the bytes of its value."""
        reply = self.ask(request)
        assert isinstance(reply, Value), reply
        return reply.data

    def rest(self) -> bytes:
        """Return everything until the broker closes the connection."""
        data = b""
        try:
            while chunk := self.socket.recv(1 << 16):
                data += chunk
        except ConnectionResetError:
            pass
        return data

    def close(self) -> None:
        self.socket.close()

    def __del__(self) -> None:
        # A test need not close its own client: a socket that is left open is an error in the project's code only.
        if hasattr(self, "socket"):
            self.socket.close()


StartBroker = Callable[..., RunningBroker]


def wait_until(condition: Callable[[], object], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Return soon after ``condition`` holds, asked ever less often; fail with ``what`` when it does not in time."""
    began = time.monotonic()
    while not condition():
        waited_s = time.monotonic() - began
        assert waited_s < deadline_s, f"waited {deadline_s} s in vain: {what}"
        select.select([], [], [], min(0.005 + waited_s / 20, 0.05))


def broker_command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "metaq_broker.cli", *map(str, arguments)]


def first_line(process: subprocess.Popen[str] | ForkedBroker) -> str:
    """Return the first line that a process prints; empty if it prints none in time."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:  # select.select cannot look at a descriptor above 1023
        selector.register(process.stdout, selectors.EVENT_READ)
        return process.stdout.readline() if selector.select(DEADLINE_S) else ""


def _run(arguments: Sequence[str | Path], log: IO[str], limits: Mapping[int, int]) -> subprocess.Popen[str]:
    def limit() -> None:
        for kind, most in limits.items():
            resource.setrlimit(kind, (most, most))

    command = broker_command(*arguments)
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, preexec_fn=limit)


def run_broker_command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run ``metaq-broker`` to its end in a fork: what an operator calls, or a start that is refused."""
    with tempfile.TemporaryFile("w+") as error:
        process = fork_broker(arguments, error, {})
        with process.stdout:
            try:
                status = process.wait(DEADLINE_S)
            finally:
                process.kill()
            error.seek(0)
            return subprocess.CompletedProcess(process.args, status, process.stdout.read(), error.read())


def launch(
    arguments: Sequence[str | Path],
    log_path: Path,
    file_bytes_max: int | None = None,
    open_files_max: int | None = None,
    forked: bool = True,
) -> RunningBroker:
    """Start a broker, wait until it is ready.

    ``file_bytes_max``: no file of it can grow beyond this (a full disk). ``open_files_max``: ``ulimit -Hn``. Not
    ``forked``: with a Python of its own, as users start it; that takes half a second.
    """
    log = open(log_path, "w")  # noqa: SIM115 - the broker's, closed with it
    wanted = {resource.RLIMIT_FSIZE: file_bytes_max, resource.RLIMIT_NOFILE: open_files_max}
    limits = {kind: most for kind, most in wanted.items() if most is not None}
    process = fork_broker(arguments, log, limits) if forked else _run(arguments, log, limits)
    line = first_line(process)
    match = READY.fullmatch(line.strip())
    if match is None:
        process.kill()
        process.wait(DEADLINE_S)
        if process.stdout is not None:
            process.stdout.close()
        log.close()
        pytest.fail(f"the broker did not get ready, it said {line!r} and {log_path.read_text()}")
    return RunningBroker(process, Address.parse(match[1]), Path(match[2]), log)


def system_section(broker_id: int = 0, partitions: int = 1, **keys: object) -> str:
    """The keys that a server.ini must have, but ``dataPath``: any free port, messages are durable before the answer.
    ``keys`` are more of them, or other values."""
    usual = {"brokerId": broker_id, "numPartitions": partitions, "serverPort": 0}
    usual |= {"unflushThreshold": 0, "unflushInterval": 10000}
    usual |= {"maxSegmentSize": "1024*1024", "maxTransferSize": "1024*1024"}
    return "[system]\n" + "".join(f"{name}={value}\n" for name, value in (usual | keys).items())


def write_ini(folder: Path, rest: str = "[topic=*]\n", **keys: object) -> Path:
    """Write the server.ini of a broker with its files in ``folder``, which is made: such keys, and ``rest`` behind."""
    folder.mkdir(exist_ok=True)
    (folder / "server.ini").write_text(system_section(**{"dataPath": folder / "data"} | keys) + rest)
    return folder / "server.ini"


def launch_in(folder: Path, rest: str = "[topic=*]\n", **keys: object) -> RunningBroker:
    return launch(["start", "-f", write_ini(folder, rest, **keys)], folder / "broker.log")


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[StartBroker]:
    """Start brokers: ``start_broker("dev", folder, "--port", "0")``. All are ended after the test."""
    running: list[RunningBroker] = []

    def start(*arguments: str | Path, file_bytes_max: int | None = None) -> RunningBroker:
        running.append(launch(arguments, tmp_path / f"broker-{len(running)}.log", file_bytes_max))
        return running[-1]

    yield start
    for broker in running:
        broker.end()


@pytest.fixture
def dev_broker(start_broker: StartBroker, tmp_path: Path) -> RunningBroker:
    """A broker that accepts every topic, two partitions each, on a free port of this machine."""
    return start_broker("dev", tmp_path / "data", "--port", "0", "--partitions", "2")
