"""Real broker processes of a synchronous pair that are stopped by SIGTERM under load: within the promised time, and
what was acknowledged is on both."""

from __future__ import annotations

import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from examples import rarely
from fix_broker import DEADLINE_S, RunningBroker, StartBroker, WireClient, wait_until
from replicated import segments
from test_replication_process import Load, ini, puts, stored

from metaq.model import Address
from metaq.protocols.text.commands import Result
from metaq.testing.ports import free_port

pytestmark = [pytest.mark.process, pytest.mark.slow]

STOP_S = 10.0
"""What the documentation promises clients that do not read; the rest is the machine's."""
MARGIN_S = 20.0


@dataclass
class Pair:
    """A synchronous pair, with a producer."""

    start_broker: StartBroker
    folder: Path

    def __post_init__(self) -> None:
        slave_port = free_port()
        self.port = free_port()
        self.slave_ini = ini(self.folder, "s", slave_port, f"[gregor]\nmaster=127.0.0.1:{self.port}")
        role = f"[samsa]\nslave=127.0.0.1:{slave_port}\ncheckSlaveIntervalInMills=20"
        self.master_ini = ini(self.folder, "m", self.port, role)
        self.slave = self.start_broker("start", "-f", self.slave_ini)
        self.master = self.start_broker("start", "-f", self.master_ini)
        self.load = Load(lambda: Address("127.0.0.1", self.port))
        self.load.go_on(100)

    def check(self) -> None:
        """Start both again; what was acknowledged is on both, in the same bytes, and puts go on."""
        self.slave = self.start_broker("start", "-f", self.slave_ini)
        self.master = self.start_broker("start", "-f", self.master_ini)
        wait_until(lambda: puts(self.master) == 200, "the pair to take messages")
        wait_until(lambda: segments(self.folder / "m") == segments(self.folder / "s"), "the files to be the same")
        assert self.load.acknowledged.items() <= stored(self.master.address).items()
        assert self.load.acknowledged.items() <= stored(self.slave.address).items()


@pytest.fixture
def pair(start_broker: StartBroker, tmp_path: Path) -> Iterator[Pair]:
    made = Pair(start_broker, tmp_path)
    yield made
    made.load.end()


def stop(broker: RunningBroker) -> None:
    """Stop a broker, in time."""
    begin_s = time.monotonic()
    broker.process.send_signal(signal.SIGTERM)
    assert broker.process.wait(DEADLINE_S) == 0
    assert time.monotonic() - begin_s < STOP_S + MARGIN_S
    assert "Traceback" not in broker.log_text()


def stop_soon(broker: RunningBroker) -> None:
    """Stop a broker whose clients all read: it waits for nobody in vain, as long as it would for others."""
    stop(broker)
    assert "connection closed at shutdown" not in broker.log_text()


def wait_until_stored(pair: Pair, clients: list[WireClient]) -> None:
    """Return when the master has what each of the clients has put, or has given the slave up and answered them."""

    def is_stored() -> bool:
        answered = select.select([client.socket for client in clients], [], [], 0)[0]
        bodies = b"".join(segments(pair.folder / "m").values()).count(b"abc")
        return bodies >= len(clients) or len(answered) == len(clients)

    wait_until(is_stored, "what the clients put is stored")


@contextmanager
def hanging_slave(pair: Pair) -> Iterator[None]:
    """The slave hangs as long as the block lasts; behind it, it is stopped and both are compared."""
    pair.slave.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        pair.slave.process.send_signal(signal.SIGCONT)
    pair.load.end()
    stop_soon(pair.slave)
    pair.check()


@pytest.mark.parametrize("seed", [0, *rarely(1, 2)])
def test_a_master_that_is_stopped_under_load(pair: Pair, seed: int) -> None:
    pair.load.go_on(30 * seed + 1)
    stop_soon(pair.master)
    pair.load.end()
    assert pair.load.acknowledged.items() <= stored(pair.slave.address).items(), "before the master is back"
    stop_soon(pair.slave)
    pair.check()


def test_the_slave_is_stopped_first(pair: Pair) -> None:
    stop_soon(pair.slave)
    stop_soon(pair.master)
    pair.load.end()
    pair.check()


def test_both_are_stopped_at_once(pair: Pair) -> None:
    pair.slave.process.send_signal(signal.SIGTERM)
    stop_soon(pair.master)
    assert pair.slave.process.wait(DEADLINE_S) == 0
    pair.load.end()
    pair.check()


def test_a_master_whose_slave_hangs_is_stopped(pair: Pair) -> None:
    with hanging_slave(pair):
        others = [WireClient(Address("127.0.0.1", pair.port)) for _ in range(4)]
        for number, client in enumerate(others):
            client.send(b"put t 0 3 0 -1 %d\r\nabc" % number)
            client.send(
                b"transaction TX:s%d:1 s%d BEGIN %d\r\n" % (number, number, number)
                + b"put t 0 3 0 TX:s%d:1 %d\r\nabc" % (number, number)
            )
        wait_until_stored(pair, others)
        stop(pair.master)
        for client in others:
            replies = client.rest()
            assert replies.startswith(b"result 500 "), replies  # what is in a transaction counts when that is committed
            client.close()


def test_a_commit_that_waits_for_a_slave_does_not_delay_the_stop(pair: Pair) -> None:
    client = WireClient(Address("127.0.0.1", pair.port))
    for line in (b"transaction TX:s:1 s BEGIN 1\r\n", b"put t 0 3 0 TX:s:1 2\r\nabc"):
        reply = client.ask(line)
        assert isinstance(reply, Result)
        assert reply.code == 200, reply
    with hanging_slave(pair):
        client.send(b"transaction TX:s:1 s COMMIT_ONE_PHASE 3\r\n")
        wait_until_stored(pair, [client])
        stop(pair.master)
        assert b"result 200 " not in client.rest()
        client.close()
