"""Two broker processes of a pair, with a real ZooKeeper; tests kill, freeze and restart them."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path

from fix_broker import RunningBroker, StartBroker, WireClient, wait_until, write_ini
from fix_zookeeper import ZooKeeperRoot

from metaq import MetaQ
from metaq.errors import MetaqError
from metaq.model import Address
from metaq.testing.ports import free_port

SESSION_MS = 2000
PACE_S = 0.002
FIELDS = ("role", "epoch", "master", "in_sync", "trouble")


class PairProcess:
    """One member. Its port stays the same."""

    def __init__(self, pair: PairProcesses, name: str, port: int) -> None:
        self._pair, self.name, self.address = pair, name, Address("127.0.0.1", port)
        self.folder = pair.folder / name
        self.running: RunningBroker | None = None
        self._is_frozen = False

    def start(self) -> RunningBroker:
        """Start it, and wait until it answers."""
        self._is_frozen = False
        self.running = self._pair.start_broker("start", "-f", self._pair.write(self))
        return self.running

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def stats(self) -> dict[str, str]:
        """Return the lines of ``stats replication``; empty if it is frozen, or closes the connection."""
        if self._is_frozen:
            return {}
        try:
            client = WireClient(self.address)
            code, text = client.result(b"stats replication 1\r\n")
            client.close()
        except (OSError, AssertionError):
            return {}
        assert code == 200, text
        return dict(line.partition(" ")[::2] for line in text.split("\r\n")[1:-2])

    @property
    def role(self) -> str:
        return self.stats().get("role", "")

    def kill(self) -> None:
        assert self.running is not None
        self.running.kill()
        self.running = None

    def stop(self) -> None:
        assert self.running is not None
        assert self.running.stop() == 0
        self.running = None

    def freeze(self) -> None:
        assert self.running is not None
        os.kill(self.running.process.pid, signal.SIGSTOP)
        self._is_frozen = True

    def thaw(self) -> None:
        assert self.running is not None
        os.kill(self.running.process.pid, signal.SIGCONT)
        self._is_frozen = False

    def log(self) -> str:
        assert self.running is not None
        return self.running.log_text()


class PairProcesses:
    """``a`` and ``b``; ``keys`` are further ones of ``[pair]``."""

    def __init__(self, folder: Path, zookeeper: ZooKeeperRoot, start_broker: StartBroker, **keys: object) -> None:
        self.folder, self.zookeeper, self.start_broker, self._keys = folder, zookeeper, start_broker, keys
        self.a = PairProcess(self, "a", free_port())
        self.b = PairProcess(self, "b", free_port())
        self.members = (self.a, self.b)
        self.extra = "[topic=t]\nnumPartitions=2\n"

    def write(self, member: PairProcess) -> Path:
        other = self.b if member is self.a else self.a
        keys = {"other": other.address, "sessionMs": SESSION_MS, "answerTimeoutMs": 5000} | self._keys
        pair = "[pair]\n" + "".join(f"{name}={value}\n" for name, value in keys.items())
        return write_ini(
            member.folder,
            f"{self.zookeeper.ini()}{pair}{self.extra}",
            brokerId=3,
            numPartitions=2,
            serverPort=member.address.port,
            maxSegmentSize=20_000,
        )

    def start(self) -> None:
        """Start both, and wait until both are in sync."""
        for member in self.members:
            member.start()
        self.wait_in_sync()

    def wait_in_sync(self) -> PairProcess:
        """Return the master, when both members are in sync with it."""
        wait_until(lambda: any(self._is_whole(each) for each in self.members), self.states())
        return self.master

    def _is_whole(self, member: PairProcess) -> bool:
        """Whether a member is the master of the latest epoch, and both say that they are in sync."""
        stats, other = member.stats(), self.other(member).stats()
        is_master = stats.get("role") == "master" and len(stats["in_sync"].split(",")) == 2
        return is_master and other.get("role") == "in_sync_slave" and other["epoch"] == stats["epoch"]

    def states(self) -> str:
        return str({each.name: each.stats() for each in self.members if each.running is not None})

    @property
    def masters(self) -> list[PairProcess]:
        return [each for each in self.members if each.running is not None and each.role == "master"]

    @property
    def master(self) -> PairProcess:
        """The master, as soon as there is exactly one."""
        found: list[PairProcess] = []

        def is_one() -> bool:
            found[:] = self.masters
            return len(found) == 1

        wait_until(is_one, "exactly one master")
        return found[0]

    def other(self, member: PairProcess) -> PairProcess:
        return self.b if member is self.a else self.a

    def wait_master(self, member: PairProcess) -> None:
        wait_until(lambda: member.role == "master", f"{member.name} is the master: {self.states()}")

    def kill_both(self) -> None:
        """Kill both before one of them notices that the other one is lost."""
        for member in self.members:
            member.freeze()
        for member in self.members:
            member.kill()

    @property
    def brokers(self) -> list[str]:
        return [str(each.address) for each in self.members]

    def copies_are_equal(self) -> bool:
        return segment_bytes(self.a.data) == segment_bytes(self.b.data)


class Load:
    """A producer in a thread of its own that sends numbers until ``stop``; each counts once it is acknowledged."""

    def __init__(self, brokers: list[str]) -> None:
        self.acknowledged: list[int] = []
        self.errors: list[str] = []
        self.pauses_s: list[float] = [0.0]
        """How long each message took."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(brokers,))

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self, brokers: list[str]) -> None:
        number = 0
        with MetaQ(brokers=brokers) as mq:
            producer = mq.producer()
            while not self._stopping.wait(PACE_S):
                began_s = time.monotonic()
                try:
                    producer.send("t", b"%d" % number)
                except MetaqError as error:
                    self.errors.append(str(error))
                else:
                    self.acknowledged.append(number)
                    self.pauses_s.append(time.monotonic() - began_s)
                number += 1

    def wait_for_more(self, count: int = 20) -> None:
        goal = len(self.acknowledged) + count
        wait_until(lambda: len(self.acknowledged) >= goal, f"{count} more, {self.errors[-1:]}")


def segment_bytes(data: Path) -> dict[str, bytes]:
    """Return the segments with bytes below a data folder, by their paths."""
    found: dict[str, bytes] = {}
    for path in sorted(data.glob("*-[0-9]/*.meta")):
        with contextlib.suppress(FileNotFoundError):  # it was just removed
            if content := path.read_bytes():
                found[str(path.relative_to(data))] = content
    return found


def running_pair(folder: Path, zookeeper: ZooKeeperRoot, start_broker: StartBroker, messages: int) -> PairProcesses:
    """Start a pair; return it when both members are in sync, and numbers from 0 on are put."""
    pair = PairProcesses(folder, zookeeper, start_broker)
    pair.start()
    put(pair, range(messages))
    return pair


def put(pair: PairProcesses, numbers: range) -> None:
    """Put numbers, each of which is acknowledged."""
    with MetaQ(brokers=pair.brokers) as mq:
        producer = mq.producer()
        for number in numbers:
            producer.send("t", b"%d" % number)


def stored(pair: PairProcesses) -> list[int]:
    with MetaQ(brokers=pair.brokers) as mq:
        return sorted(int(message.data) for message in mq.browse("t"))
