"""Programs with RocketMQ's own Java client. Their arguments: ``java/*.java``."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from peers.jvm import OPENED
from peers.rocketmq.ask import Account
from peers.rocketmq.jars import Release

DEADLINE_S: Final = 120.0
QUICK: Final = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
MEASURED: Final = ("-Xms512m", "-Xmx512m", "-XX:+UseSerialGC")


@dataclass(frozen=True, slots=True)
class Rate:
    """One run of a program that measures."""

    messages: int
    seconds: float

    @property
    def per_s(self) -> float:
        return self.messages / self.seconds


@dataclass(frozen=True, slots=True)
class Programs:
    """The programs of a release, against one cluster. ``account`` signs their requests."""

    release: Release
    name_servers: str
    account: Account | None = None
    deadline_s: float = DEADLINE_S

    def write(self, topic: str, count: int, **more: object) -> None:
        """Write messages, number n to queue n % queues. They are in order with ``underWay=1`` or in batches.

        More: first, size, batch, compressAbove, tags, keys, properties, delayLevel, flag.
        """
        self._run("Write", QUICK, topic=topic, count=count, **more)

    def dump(self, topic: str, file: Path, **more: object) -> int:
        """Write all messages of the topic to a file, a JSON object per line with ``value`` in base64. Return their
        number.
        """
        lines = self._run("Dump", QUICK, topic=topic, file=file, **more)
        return int(lines[-1][1])

    def pull_rates(self, topic: str, queue: int = -1, runs: int = 3, **more: object) -> list[Rate]:
        """Measure how fast a pull consumer reads the topic, or one queue of it, and discards the messages."""
        lines = self._run("PullRate", MEASURED, topic=topic, queue=queue, runs=runs, **more)
        return [Rate(int(line[1]), float(line[2])) for line in lines if line[0] == "rate"]

    def send_rates(self, topic: str, count: int, runs: int = 3, **more: object) -> list[Rate]:
        """Measure how fast a producer sends batches whose threads wait for each. More: threads, batch, ... as
        ``write``.
        """
        lines = self._run("SendRate", MEASURED, topic=topic, count=count, runs=runs, **more)
        return [Rate(int(line[1]), float(line[2])) for line in lines if line[0] == "rate"]

    def send_singles(self, topic: str, count: int, threads: int, runs: int = 3, **more: object) -> list[Rate]:
        """Measure how fast ``threads`` threads send single messages and wait for each answer."""
        lines = self._run("Senders", MEASURED, topic=topic, count=count, threads=threads, runs=runs, **more)
        return [Rate(int(line[1]), float(line[2])) for line in lines if line[0] == "rate"]

    def push_rate(self, topic: str, group: str, count: int) -> Rate:
        """Measure how fast a push consumer of a new group gets ``count`` messages, from the first to the last."""
        lines = self._run("PushRate", MEASURED, topic=topic, group=group, count=count)
        (rate,) = (Rate(int(line[1]), float(line[2])) for line in lines if line[0] == "rate")
        return rate

    def latency_ms(self, topic: str, group: str, count: int, **more: object) -> tuple[float, float]:
        """Return median and 99th percentile of the time from a send to its delivery, in milliseconds. More: perSecond,
        warmUp.
        """
        lines = self._run("Latency", MEASURED, topic=topic, group=group, count=count, **more)
        ((median, slowest),) = ((float(line[1]), float(line[2])) for line in lines if line[0] == "latency")
        return median, slowest

    def push(self, topic: str, group: str, count: int, **more: object) -> list[list[str]]:
        """Return ``count`` messages that a push consumer of a group gets: broker, queue, offset, tags, body."""
        lines = self._run("Push", QUICK, topic=topic, group=group, count=count, **more)
        return [line[1:] for line in lines if line[0] == "message"]

    def command(self, program: str, options: Sequence[str] = QUICK, **arguments: object) -> list[str]:
        given = {"nameServers": self.name_servers, **arguments}
        if self.account is not None:
            given |= {"accessKey": self.account.access_key, "secretKey": self.account.secret_key}
        quiet = "-Drocketmq.client.logLevel=WARN"
        start = ["java", *options, *OPENED, quiet, "-Dfile.encoding=UTF-8", "-cp", self.release.class_path, program]
        return [*start, *(f"{key}={value}" for key, value in given.items())]

    def _run(self, program: str, options: Sequence[str], **arguments: object) -> list[list[str]]:
        command = self.command(program, options, **arguments)
        ended = subprocess.run(command, capture_output=True, text=True, timeout=self.deadline_s)
        if ended.returncode:
            raise RuntimeError(f"{program} {arguments}: {ended.stdout[-2000:]}{ended.stderr[-4000:]}")
        return [line.split("\t") for line in ended.stdout.splitlines()]
