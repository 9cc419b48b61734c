"""The members of one group, each a process, and a sender."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from faults.groups.verdict import Handled
from metaq import MetaQ
from metaq.errors import MetaqError
from metaq.model import Partition

SAVE_S: Final = 0.5
SESSION_S: Final = 2.0
TOPIC: Final = "orders"
PARTITIONS: Final = 6
ZOOKEEPER_PARTITIONS: Final = [Partition(0, index) for index in range(PARTITIONS)]
SEND_PAUSE_S: Final = 0.03
END_S: Final = 120.0


@dataclass
class Member:
    """One consumer, with the file in which it records handled messages."""

    name: str
    process: subprocess.Popen[str]
    log: Path
    id: str
    """The consumer id; a successor has the same."""

    def expire(self) -> None:
        """End its session at ZooKeeper."""
        assert self.process.stdin is not None
        self.process.stdin.write("expire\n")
        self.process.stdin.flush()

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def leave(self) -> None:
        """Let it leave the group, and end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(END_S)
        finally:
            self.kill()

    def handled(self) -> list[Handled]:
        """Return the messages that it has handled; a kill may have cut the last line."""
        if not self.log.exists():
            return []
        rows = (line.split("\t") for line in self.log.read_text().split("\n")[:-1])
        return [Handled(int(ms), self.name, text) for ms, text in rows]


@dataclass
class Group:
    """All members, including former ones."""

    cluster: str
    name: str
    start: str
    folder: Path
    members: list[Member] = field(default_factory=list)

    def join(self, name: str | None = None) -> Member:
        """Start a member with a new id, or as a successor with the id ``name``."""
        number = f"m{len(self.members)}"
        name = name or number
        log, errors = self.folder / f"{number}.log", self.folder / f"{number}.err"
        given = (self.cluster, TOPIC, self.name, name, self.start, str(SAVE_S), str(SESSION_S), str(log))
        with open(errors, "w") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "faults.groups.member", *given],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                text=True,
            )
        self.members.append(Member(number, process, log, name))
        return self.members[-1]

    @property
    def alive(self) -> list[Member]:
        """The members whose processes run."""
        return [one for one in self.members if one.process.poll() is None]

    def handled(self) -> list[Handled]:
        """Return the messages that all members have handled."""
        return [one for member in self.members for one in member.handled()]

    def end(self) -> None:
        """End the running members."""
        for member in self.alive:
            member.kill()
        for member in self.members:
            if member.process.stdin is not None:
                member.process.stdin.close()


class Sender:
    """Sends numbered messages in a thread, to all partitions in turn; ``sent`` are the acknowledged ones."""

    def __init__(self, mq: MetaQ, prefix: str, partitions: Sequence[Partition] = ZOOKEEPER_PARTITIONS) -> None:
        self._producer, self._prefix, self.sent = mq.producer(), prefix, list[str]()
        self._partitions = partitions
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._over.wait(SEND_PAUSE_S):
            for partition in self._partitions:
                number += 1
                text = f"{self._prefix}-{number}"
                try:
                    self._producer.send(TOPIC, text, partition=partition)
                except MetaqError:
                    continue  # it may be stored nevertheless: it is not counted
                self.sent.append(text)

    def stop(self) -> None:
        """Stop, and wait for the last acknowledgement."""
        self._over.set()
        self._thread.join(END_S)


Wait = Callable[[Callable[[], bool], str], None]
"""Waits for a condition, or fails with the sentence."""
