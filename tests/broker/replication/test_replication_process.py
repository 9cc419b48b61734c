"""Real broker processes that are killed at any moment, on either side: what was acknowledged survives on the other."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from fix_broker import (
    DEADLINE_S,
    RunningBroker,
    StartBroker,
    WireClient,
    run_broker_command,
    system_section,
    wait_until,
)
from replicated import SEGMENT_BYTES, segments

from metaq.formats.frames import walk
from metaq.model import Address
from metaq.protocols.text.commands import Result
from metaq.testing.ports import free_port

pytestmark = [pytest.mark.process, pytest.mark.slow]

ROUNDS = 6


def ini(folder: Path, name: str, port: int, role: str) -> Path:
    """Write the configuration of a broker; return its path."""
    file = folder / f"{name}.ini"
    system = system_section(3, 2, serverPort=port, maxSegmentSize=SEGMENT_BYTES * 10, dataPath=folder / name)
    file.write_text(f"{system}{role}\n[topic=t]\n")
    return file


class Load:
    """Puts messages one after the other, until it is told to end; knows which were acknowledged."""

    def __init__(self, address: Callable[[], Address]) -> None:
        self._address = address
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Put no more."""
        self._ending.set()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()

    def go_on(self, count: int) -> None:
        """Return when ``count`` more messages are acknowledged."""
        goal = len(self.acknowledged) + count
        wait_until(lambda: len(self.acknowledged) >= goal, f"{count} more messages to be acknowledged")

    def _work(self) -> None:
        number = 0
        while not self._ending.is_set():
            try:
                client = WireClient(self._address())
            except OSError:
                self._ending.wait(0.02)
                continue
            try:
                while not self._ending.is_set():
                    number += 1
                    self._put(client, number)
            except (OSError, AssertionError):
                continue
            finally:
                client.close()

    def _put(self, client: WireClient, number: int) -> None:
        body = b"message %d " % number + b"x" * (number % 300)
        reply = client.ask(b"put t %d %d 0 -1 %d\r\n%b" % (number % 2, len(body), number, body))
        assert isinstance(reply, Result)
        if reply.code == 200:
            _, partition, offset = map(int, reply.text.split(" "))
            self.acknowledged[partition, offset] = body
        else:
            self._ending.wait(0.02)


def stored(address: Address) -> dict[tuple[int, int], bytes]:
    """Return every message that a broker serves."""
    client = WireClient(address)
    found: dict[tuple[int, int], bytes] = {}
    for partition in (0, 1):
        run, offset = b"", 0
        while not isinstance(reply := client.ask(b"get t g %d %d 1048576 1\r\n" % (partition, offset)), Result):
            run += reply.data
            offset += len(reply.data)
        found |= {(partition, frame.offset): frame.body for frame in walk(run)}
    client.close()
    return found


def killed_in_turns(
    start_broker: StartBroker, load: Load, chance: random.Random, *pair: tuple[RunningBroker, Path]
) -> list[RunningBroker]:
    """Kill one of two brokers at a time, under load, and start it again; return those that run in the end."""
    brokers = [broker for broker, _ in pair]
    for _ in range(ROUNDS):
        load.go_on(chance.randrange(1, 150))  # the moment of the kill
        which = 0 if chance.random() < 0.5 else 1
        brokers[which].kill()
        brokers[which] = start_broker("start", "-f", pair[which][1])
    return brokers


def test_an_asynchronous_slave_catches_up_whoever_is_killed(start_broker: StartBroker, tmp_path: Path) -> None:
    chance, port = random.Random(7), free_port()
    master_ini = ini(tmp_path, "m", port, "")
    slave_ini = ini(tmp_path, "s", 0, f"[slave]\nslaveId=0\nmaster=127.0.0.1:{port}\nslaveMaxDelayInMills=20")
    master, slave = start_broker("start", "-f", master_ini), start_broker("start", "-f", slave_ini)
    load = Load(lambda: Address("127.0.0.1", port))
    master, slave = killed_in_turns(start_broker, load, chance, (master, master_ini), (slave, slave_ini))
    load.end()
    wait_until(lambda: segments(tmp_path / "m") == segments(tmp_path / "s"), "the files to be the same")
    wait_until(lambda: stored(slave.address) == stored(master.address), "the slave to serve all")
    assert len(load.acknowledged) > 50
    assert load.acknowledged.items() <= stored(slave.address).items()


def test_a_pair_loses_nothing_that_was_acknowledged(start_broker: StartBroker, tmp_path: Path) -> None:
    chance, master_port, slave_port = random.Random(11), free_port(), free_port()
    slave_ini = ini(tmp_path, "s", slave_port, f"[gregor]\nmaster=127.0.0.1:{master_port}")
    pair = f"[samsa]\nslave=127.0.0.1:{slave_port}\ncheckSlaveIntervalInMills=20"
    master_ini = ini(tmp_path, "m", master_port, pair)
    slave, master = start_broker("start", "-f", slave_ini), start_broker("start", "-f", master_ini)
    load = Load(lambda: Address("127.0.0.1", master_port))
    slave, master = killed_in_turns(start_broker, load, chance, (slave, slave_ini), (master, master_ini))
    load.go_on(50)
    assert "is running: stop it first" in promote(tmp_path / "s", 1)
    master.kill()
    promote(tmp_path / "s", 0)
    load.end()
    assert load.acknowledged.items() <= stored(slave.address).items()
    wait_until(lambda: puts(slave) == 200, "the promoted broker to take messages")
    master = start_broker("start", "-f", master_ini)
    wait_until(lambda: puts(master) == 403, "the old master to be fenced")


def promote(data: Path, status: int) -> str:
    """Run ``ctl promote``; return what it said."""
    done = run_broker_command("ctl", "--data", data, "promote")
    assert done.returncode == status, done
    return done.stdout + done.stderr


def puts(broker: RunningBroker) -> int:
    """Return the code with which a put is answered."""
    client = broker.client()
    code, _ = client.result(b"put t 0 1 0 -1 1\r\nx")
    client.close()
    return code
