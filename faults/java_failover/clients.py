"""Java programs that send and consume numbered messages, and what they report: ``Endure.java`` of each system.

A program has a producer and a consumer for each of its topics. A number is sent once; the client may send it again by
itself, so a number may be stored more than once.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from faults.broker_process import BrokerTrouble
from peers.jvm import OPENED, ends_with_us
from peers.metaq.jars import client_jars, compiled
from peers.rocketmq.jars import release
from peers.rocketmq.programs import QUICK

PAUSE_MS: Final = 10
"""Between two messages of a producer."""

START_S: Final = 120.0
STOP_S: Final = 60.0
ERRORS_KEPT: Final = 5

METAQ_SOURCE: Final = Path(__file__).parents[2] / "peers" / "metaq" / "java" / "Endure.java"
METAQ_LOGGING: Final = """\
log4j.rootLogger=WARN, output
log4j.appender.output=org.apache.log4j.ConsoleAppender
log4j.appender.output.target=System.err
log4j.appender.output.layout=org.apache.log4j.PatternLayout
log4j.appender.output.layout.ConversionPattern=%d{HH:mm:ss.SSS} %p %c{1} %m%n
"""


class Clients:
    """A producer and a consumer of one topic. Times are seconds since 1970; the program's thread writes them.

    ``stays_with_frozen``: they do not leave a master that is frozen and still accepts connections. RocketMQ's Java
    client has one connection to an address, and asks a name server as long as it has a connection to it. If the master
    is the name server, too, each attempt to send opens that connection again.
    """

    def __init__(self, topic: str, name: str, *, stays_with_frozen: bool = False) -> None:
        self.topic, self.name, self.stays_with_frozen = topic, name, stays_with_frozen
        self.acknowledged: dict[int, float] = {}
        self.consumed: dict[int, int] = {}
        """number -> how often it was delivered."""
        self.errors: list[str] = []
        """The latest reasons."""
        self.error_count = 0

    def has_acknowledged_after(self, moment_s: float) -> bool:
        """Return whether a message was acknowledged after a moment; the last one decides."""
        last = next(reversed(self.acknowledged.values()), 0.0) if self.acknowledged else 0.0
        return last > moment_s

    def pause_s(self, since_s: float, until_s: float) -> float:
        """Return the longest time without an acknowledged message that ended after ``since_s``.

        The first message acknowledged after ``until_s`` ends the last such time.
        """
        times = list(self.acknowledged.values())
        ends = [each for each in times if each > until_s][:1]
        inside = [each for each in times if since_s < each <= until_s]
        before = [each for each in times if each <= since_s][-1:] or [since_s]
        return max(late - early for early, late in pairwise([*before, *inside, *ends]))

    @property
    def missing(self) -> list[int]:
        """The acknowledged numbers that were not consumed."""
        return sorted(set(self.acknowledged) - set(self.consumed))


class Program:
    """One running program; ``clients`` are its topics. Its log is in ``folder``."""

    def __init__(self, name: str, command: Sequence[str], clients: Sequence[Clients], folder: Path) -> None:
        self.name, self.clients = name, clients
        self._by_topic: Mapping[str, Clients] = {each.topic: each for each in clients}
        self._said: set[str] = set()
        self._changed = threading.Condition()
        self._log = folder / f"{name}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*ends_with_us(), *command],
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                errors="replace",
            )
        self._reader = threading.Thread(target=self._read, name=f"events-{name}", daemon=True)
        self._reader.start()

    def wait_ready(self) -> None:
        """Wait until it sends. Raises ``BrokerTrouble``."""
        self._wait_for("ready", START_S)

    def stop_sending(self) -> None:
        """Let its producers end, and wait; its consumers go on. Raises ``BrokerTrouble``."""
        assert self._process.stdin is not None
        self._process.stdin.write("stop\n")
        self._process.stdin.flush()
        self._wait_for("stopped", STOP_S)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _wait_for(self, word: str, seconds: float) -> None:
        end = time.monotonic() + seconds
        with self._changed:
            while word not in self._said:
                if not self._reader.is_alive() or time.monotonic() > end:
                    log = self._log.read_text(errors="replace")[-3000:]
                    raise BrokerTrouble(f"{self.name} did not say {word}: {log}")
                self._changed.wait(0.1)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._note(line.rstrip("\n").split("\t"))

    def _note(self, fields: Sequence[str]) -> None:
        kind = fields[0]
        if kind in ("sent", "failed", "got"):
            clients, number = self._by_topic[fields[1]], int(fields[2])
            if kind == "sent":
                clients.acknowledged[number] = int(fields[3]) / 1000
            elif kind == "got":
                clients.consumed[number] = clients.consumed.get(number, 0) + 1
            else:
                clients.error_count += 1
                clients.errors = [*clients.errors, f"{number}: {fields[4]}"][-ERRORS_KEPT:]
            return
        with self._changed:
            self._said.add(kind)
            self._changed.notify_all()


def metaq_program(folder: Path, zookeeper: str, root: str, clients: Clients) -> Program:
    """Start MetaQ's own client. Raises ``peers.maven.Unavailable``."""
    lib = client_jars(with_driver=False)
    classes, logging = folder / "classes", folder / "log4j.properties"
    classes.mkdir(parents=True)
    logging.write_text(METAQ_LOGGING)
    path = compiled([METAQ_SOURCE], classes, lib)
    options = [f"-Dlog4j.configuration=file:{logging}", f"-Dmeta.recover.path={folder / 'recover'}"]
    command = ["java", *QUICK, *options, f"-Duser.home={folder}", "-cp", path, "Endure"]
    return Program("metaq", [*command, zookeeper, root, clients.topic, str(PAUSE_MS)], [clients], folder)


def rocketmq_program(
    folder: Path, version: str, name_servers: Mapping[str, str], clients: Sequence[Clients], poll_ms: int | None
) -> Program:
    """Start RocketMQ's own client of a release. ``name_servers``: topic -> ``HOST:PORT;...``.

    ``poll_ms``: how often it asks for routes; ``None``: as often as it does by default, every 30 s.
    Raises ``peers.maven.Unavailable``.
    """
    there = release(version)
    folder.mkdir(parents=True)
    topics = ",".join(f"{each.topic}@{name_servers[each.topic]}" for each in clients)
    options = [*QUICK, *OPENED, "-Drocketmq.client.logLevel=WARN", f"-Duser.home={folder}"]
    command = ["java", *options, "-cp", there.class_path, "Endure", f"topics={topics}", f"pauseMs={PAUSE_MS}"]
    if poll_ms is not None:
        command.append(f"pollMs={poll_ms}")
    return Program(f"rocketmq-{version}", command, clients, folder)
