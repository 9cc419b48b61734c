"""Members of one group with their offsets in a database: ours among each other, and MetaQ's Java client beside ours."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fix_broker import wait_until
from fix_databases import ONLY_IF_ASKED, Database
from fix_zookeeper import SESSION_S, Brokers, ZooKeeperRoot

from metaq import MetaQ
from metaq.client.offsets import OffsetStorage
from metaq.errors import PartitionLost
from metaq.model import Partition, TopicPartition
from peers.maven import Unavailable
from peers.metaq.jars import client_jars, compiled

pytestmark = [pytest.mark.process, pytest.mark.slow, ONLY_IF_ASKED]

FAST: dict[str, Any] = {"session_s": SESSION_S, "poll_max_s": 0.1, "save_s": 1000}
DEADLINE_S = 60.0
JAVA_MEMBER = Path(__file__).parents[1] / "java" / "JavaMember.java"


@pytest.fixture
def mq(brokers: Brokers, zookeeper: ZooKeeperRoot) -> Iterator[MetaQ]:
    """A cluster with one broker and a topic of two partitions."""
    brokers.start("one", "[topic=test]\nnumPartitions=2\n")
    with MetaQ(f"zk://{zookeeper.option}") as made:
        yield made


def send(mq: MetaQ, numbers: range) -> list[bytes]:
    """Send numbered messages to both partitions in turn."""
    texts = [b"%d" % number for number in numbers]
    for text in texts:
        mq.producer().send("test", text, partition=Partition(3, int(text) % 2))
    return texts


def test_a_late_save_of_a_lost_partition_is_refused(database: Database, mq: MetaQ) -> None:
    send(mq, range(4))
    where = TopicPartition("test", Partition(3, 1))

    def member(name: str) -> Any:
        given = FAST | {"drain_s": 0.2, "offsets": database.storage()}
        return mq.consumer("g", ["test"], consumer_id=name, auto_ack=False, **given)

    with member("1") as slow:
        found: list[Any] = []
        while len(found) < 4:
            found += slow.fetch(timeout=10)
        with member("2") as other:
            wait_until(lambda: other.assignment == [where], "the slow one does not keep it")
            send(mq, range(5, 8, 2))
            seen: list[Any] = []
            while len(seen) < 4:
                seen += other.fetch(timeout=10)
            other.commit()
            stored = _stored(database, where)
            assert stored == seen[-1].end
            lost = next(one for one in found if one.partition == where.partition)
            with pytest.raises(PartitionLost, match="test/3-1"):
                lost.ack()
            slow.commit()
            assert _stored(database, where) == stored, "of the lost one nothing was saved"
            assert _stored(database, TopicPartition("test", Partition(3, 0))) > 0, "its own was"
    assert _stored(database, where) == stored, "nor when it left"


def _stored(database: Database, where: TopicPartition) -> int:
    with closing(database.storage()) as storage:
        return storage.load("g", [where])[where].offset


class JavaMembers:
    """Starts MetaQ's own consumer, which writes what it consumed to a file, and ends it."""

    def __init__(self, classes: str, zookeeper: ZooKeeperRoot, folder: Path) -> None:
        self._classes, self._zookeeper, self._folder = classes, zookeeper, folder
        self._count = 0

    def read(self, count: int, database_url: str | None) -> list[bytes]:
        """Return what it consumes until ``count`` messages came and it has left."""
        self._count += 1
        log, errors = (self._folder / f"java{self._count}.{kind}" for kind in ("log", "err"))
        where = [self._zookeeper.server.address, self._zookeeper.root, "test", "g"]
        rest = [f"java{self._count}", str(int(SESSION_S * 1000)), "DEFAULT", str(log)]
        java = ["java", "-Xmx128m", "-XX:TieredStopAtLevel=1", f"-Dmeta.recover.path={self._folder}"]
        command = [*java, "-cp", self._classes, "JavaMember", *where, *rest, *([database_url] if database_url else [])]
        with open(errors, "wb") as out, subprocess.Popen(command, stdin=-1, stdout=out, stderr=out) as process:
            try:
                wait_until(lambda: len(_lines(log)) >= count, f"Java reads {count}: {errors}", DEADLINE_S)
                assert process.stdin is not None
                process.stdin.close()
                assert process.wait(DEADLINE_S) == 0, errors.read_text()
            finally:
                process.kill()
        return _lines(log)


def _lines(log: Path) -> list[bytes]:
    if not log.exists():
        return []
    return [line.split("\t")[2].encode() for line in log.read_text().split("\n")[:-1]]


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The class path of the Java member."""
    try:
        lib = client_jars()
    except Unavailable as reason:
        pytest.skip(str(reason))
    return compiled([JAVA_MEMBER], tmp_path_factory.mktemp("classes"), lib)


@pytest.mark.parametrize("keeps", ["database", "zookeeper"])
def test_java_goes_on_from_our_offsets_and_we_from_its(
    mq: MetaQ, classes: str, zookeeper: ZooKeeperRoot, tmp_path: Path, mariadb: tuple[Database, str], keeps: str
) -> None:
    database, url = mariadb
    storage: Callable[[], OffsetStorage | None] = database.storage if keeps == "database" else lambda: None
    database_url = url if keeps == "database" else None
    java = JavaMembers(classes, zookeeper, tmp_path)

    def ours(count: int) -> list[bytes]:
        found: list[bytes] = []
        with mq.consumer("g", ["test"], offsets=storage(), **FAST) as consumer:
            while len(found) < count:
                found += [one.data for one in consumer.fetch(timeout=20)]
        return found

    for start in range(0, 40, 20):
        assert sorted(ours(len(send(mq, range(start, start + 10))))) == sorted(_texts(start, start + 10))
        send(mq, range(start + 10, start + 20))
        assert sorted(java.read(10, database_url)) == sorted(_texts(start + 10, start + 20))
        _check_stored(mq, database if database_url else None, zookeeper)


def _check_stored(mq: MetaQ, database: Database | None, zookeeper: ZooKeeperRoot) -> None:
    """The offsets that Java saved when it left are the ends of the partitions, and they are where they should be."""
    ends = {str(one.partition): one.end for one in mq.cluster.describe("test")}
    paths = {name: zookeeper.text(f"/consumers/g/offsets/test/{name}") for name in ends}
    if database is None:
        assert {name: int(str(text).rpartition("-")[2]) for name, text in paths.items()} == ends
    else:
        assert set(paths.values()) == {None}
        assert {row[1]: row[3] for row in database.rows()} == ends


def _texts(start: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, end)]
