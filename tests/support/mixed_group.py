"""A group of Java and Python consumers in processes of their own, which join, leave and die while others send."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from fix_broker import wait_until

PYTHON_MEMBER = [sys.executable, str(Path(__file__).with_name("group_member.py"))]
TOPIC, GROUP, PARTITIONS = "mixed", "both", 12
DEADLINE_S = 90.0


@dataclass
class Member:
    """A consumer, and the file that says what it consumed."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    killed: bool = False

    @property
    def is_java(self) -> bool:
        return self.name.startswith("java")

    def rows(self) -> list[tuple[int, str, str]]:
        """(ms since 1970, partition, text) of each message; a last line may be cut by a kill."""
        if not self.log.exists():
            return []
        lines = self.log.read_text().split("\n")[:-1]
        return [(int(ms), partition, text) for ms, partition, text in (line.split("\t") for line in lines)]

    def leave(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(DEADLINE_S) == 0, f"{self.name} did not leave well"

    def kill(self) -> None:
        self.killed = True
        self.process.kill()
        self.process.wait(DEADLINE_S)


@dataclass
class MixedGroup:
    """All members that ever were. A subclass knows how a member is started, and who reads what once all is quiet."""

    folder: Path
    members: list[Member] = field(default_factory=list)

    def command(self, language: str, name: str) -> list[str]:
        """The command line of a member that writes to ``log_of(name)`` and leaves when its standard input ends."""
        raise NotImplementedError

    def settle(self) -> None:
        """Wait until the partitions are divided as they should be."""
        raise NotImplementedError

    @property
    def alive(self) -> list[Member]:
        return [one for one in self.members if one.process.poll() is None]

    def log_of(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def join(self, language: str) -> Member:
        name = f"{language}{len(self.members)}"
        with open(self.folder / f"{name}.err", "wb") as errors:
            command = self.command(language, name)
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=errors, stderr=errors)
        self.members.append(Member(name, process, self.log_of(name)))
        return self.members[-1]

    def consumed(self) -> dict[str, list[tuple[int, Member]]]:
        """Text -> when it was consumed, and by whom."""
        found = defaultdict(list)
        for one in self.members:
            for ms, _, text in one.rows():
                found[text].append((ms, one))
        return found

    def repeated(self) -> dict[str, list[tuple[int, Member]]]:
        """What was consumed more than once, in order of time."""
        consumed = self.consumed().items()
        return {text: sorted(rows, key=lambda row: row[0]) for text, rows in consumed if len(rows) > 1}

    def end(self) -> None:
        """Kill those that are left."""
        for one in self.alive:
            one.kill()
        for one in self.members:
            if one.process.stdin is not None:
                one.process.stdin.close()

    # ---- a whole life

    def change_while_sending(self, mq: Client, seed: int, rounds: int) -> None:
        """Let members join, leave and die, and in the end leave; everything that was sent is then consumed."""
        print(f"seed {seed}")
        choose = random.Random(seed)

        def change() -> None:
            for language in ("java", "python"):
                self.join(language)
            self.settle()
            for _ in range(rounds):
                self._change(choose)
                self.settle()

        self.consume_while_sending(mq, change)

    def consume_while_sending(self, mq: Client, change: Callable[[], None]) -> None:
        """Send while ``change`` runs; members that are left consume all, then leave."""
        sender = _Sender(mq)
        try:
            change()
        finally:
            sender.stop()
        wait_until(lambda: len(self.consumed()) == len(sender.sent), "all is consumed", DEADLINE_S)
        for one in self.alive:
            if one.is_java:  # it may leave offsets unsaved if it goes while it divides partitions
                self.settle()
            one.leave()
        assert set(self.consumed()) == set(sender.sent)

    def _change(self, choose: random.Random) -> None:
        """Let a member join, leave or die; there are two to five of them."""
        alive = self.alive
        action = choose.choice(["join", "leave", "kill"])
        if len(alive) <= 2 or (action == "join" and len(alive) < 5):
            self.join(choose.choice(["java", "python"]))
        elif action == "kill":
            choose.choice(alive).kill()
        else:
            choose.choice(alive).leave()


class Client(Protocol):
    """``MetaQ`` or ``RocketMQ``."""

    def producer(self) -> Any: ...


class _Sender:
    """Sends numbered messages in a thread until it is stopped; notes those that were acknowledged."""

    def __init__(self, mq: Client) -> None:
        self._producer, self.sent, self._stop = mq.producer(), list[str](), threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            texts = [f"{len(self.sent) + number:08}" for number in range(10)]
            self._producer.send_many(TOPIC, texts)
            self.sent += texts

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
