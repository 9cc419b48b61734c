"""A consumer's process that is stopped for longer than its session, with its offsets where ZooKeeper cannot fence them.

It goes on as if no time had passed, and its first act is to save what it had read before.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fix_broker import wait_until
from fix_zookeeper import SESSION_S, Brokers, ZooKeeperRoot

from metaq import MetaQ
from metaq.client.offsets import OffsetStorage, file
from metaq.client.sql_offsets import sqlite
from metaq.model import Partition, TopicPartition

pytestmark = pytest.mark.process

WHERE = TopicPartition("test", Partition(3, 0))
MAKES: dict[str, Callable[[Path], OffsetStorage]] = {"sqlite": sqlite, "file": file}
FAST: dict[str, Any] = {"session_s": SESSION_S, "poll_max_s": 0.1, "save_s": 1000}

MEMBER = """
import sys

from metaq import MetaQ
from metaq.client.offsets import file
from metaq.client.sql_offsets import sqlite
from metaq.errors import MetaqError

cluster, make, path, session_s = sys.argv[1:]
storage = {"file": file, "sqlite": sqlite}[make](path)
given = dict(consumer_id="a", offsets=storage, save_s=1000, session_s=float(session_s), auto_ack=False)
with MetaQ(cluster) as mq, mq.consumer("g", ["test"], **given) as consumer:
    found = []
    while len(found) < 10:
        found += consumer.fetch(10 - len(found), timeout=10)
    for message in found:
        message.ack()
    print("ready", flush=True)
    sys.stdin.readline()  # is there when it goes on
    try:
        consumer.commit()
        print("committed", flush=True)
    except MetaqError as error:
        print("refused:", error, flush=True)
    sys.stdin.read()
"""


class Member:
    """The consumer ``a`` in a process of its own."""

    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", MEMBER, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def go_on(self) -> None:
        """Have a stopped process go on, and save at once."""
        assert self._process.stdin is not None
        self._process.stdin.write("save\n")
        self._process.stdin.flush()
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def end(self) -> None:
        self._process.communicate(timeout=60)
        assert self._process.returncode == 0

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def mq(brokers: Brokers) -> Iterator[MetaQ]:
    """A cluster with one broker and a topic of one partition with ten messages."""
    with brokers.one_with_messages(partitions=1, messages=10) as made:
        yield made


@pytest.mark.parametrize("make", sorted(MAKES))
def test_it_writes_nothing_over_the_next_owners_offset(
    mq: MetaQ, zookeeper: ZooKeeperRoot, tmp_path: Path, make: str
) -> None:
    path = tmp_path / "offsets"
    member = Member(f"zk://{zookeeper.option}", make, str(path), str(SESSION_S))
    try:
        assert member.line() == "ready"
        member.stop()
        wait_until(lambda: zookeeper.text("/consumers/g/owners/test/3-0") is None, "its session expires")
        mq.producer().send("test", b"ten")
        with mq.consumer("g", ["test"], consumer_id="b", offsets=MAKES[make](path), **FAST) as other:
            found: list[bytes] = []
            while len(found) < 11:
                found += [one.data for one in other.fetch(timeout=10)]
            other.commit()
            (end,) = [one.end for one in mq.cluster.describe("test")]
            assert MAKES[make](path).load("g", [WHERE])[WHERE].offset == end
            member.go_on()
            said = member.line()
            assert MAKES[make](path).load("g", [WHERE])[WHERE].offset == end, said
            assert said.startswith("refused: ZooKeeper") or said == "committed", "of what is still its own: nothing"
            assert other.assignment == [WHERE]
        member.end()
        assert MAKES[make](path).load("g", [WHERE])[WHERE].offset == end
    finally:
        member.kill()
