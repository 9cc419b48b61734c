"""The mirror: what it remembers, what it refuses, and the whole of it between two brokers; a driver is killed, too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from chispa.dataframe_comparer import assert_df_equality
from fix_broker import RunningBroker, StartBroker, wait_until
from fix_spark import spark_environment
from mirror_topics import Memory, Mirror, parse_arguments, refuse_circles, run, transform
from plain_client import put_all, stored
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from metaq.backends.metaq.pool import shared_pool
from metaq.discovery.fixed import FixedDirectory
from metaq.model import Message, Partition
from metaq.operate.mirror.targets import TooFewPartitions

JOB = Path(__file__).parents[2] / "jobs" / "mirror_topics.py"
PLACES = {"orders": {Partition(0, 0): Partition(7, 1), Partition(0, 1): Partition(7, 0)}}


def test_memory_is_kept_and_only_grows_when_something_is_new(tmp_path: Path) -> None:
    memory = Memory(str(tmp_path), "copy-")
    memory.keep({})
    memory.keep(PLACES)
    memory.keep(dict(PLACES))
    again = Memory(str(tmp_path), "copy-")
    assert (again.name, again.assigned) == (memory.name, PLACES)
    assert sorted(file.name for file in (tmp_path / "mirror").iterdir()) == ["00000000.json", "00000001.json"]
    with pytest.raises(ValueError, match=r"--prefix 'other-': this checkpoint's mirror was begun with 'copy-'"):
        Memory(str(tmp_path), "other-")


def test_memory_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror" / "00000007.json").write_text('{"v": 2}')
    with pytest.raises(ValueError, match="form 2 was written by a newer version"):
        Memory(str(tmp_path), "")


@pytest.mark.parametrize(
    ("topics", "prefix", "said"),
    [
        (["orders"], "", "--prefix: needed where source and target share a broker"),
        (
            ["copy-orders", "orders"],
            "copy-",
            r"'copy-orders' is the mirror of 'orders'.*--pattern '\(\?!copy\\-\)\.\*'",
        ),
    ],
)
def test_circles_are_refused(topics: list[str], prefix: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        refuse_circles(topics, prefix)
    refuse_circles(["orders", "copy-others"], "copy-")


REQUIRED = ["--from-brokers", "h:1", "--to-brokers", "h:2", "--checkpoint", "c"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (REQUIRED, "one of the arguments --topics --pattern is required"),
        ([*REQUIRED, "--topics", "a", "--pattern", "b"], "not allowed with argument"),
        ([*REQUIRED, "--pattern", "("], "--pattern: '(': not a regular expression"),
        ([*REQUIRED, "--topics", "a", "--every", "10"], "--every: '10': expected a duration such as '30 seconds'"),
        ([*REQUIRED, "--topics", "a", "--start", "now"], "--start: invalid choice: 'now'"),
    ],
)
def test_wrong_arguments_are_named(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(arguments)
    assert said in capsys.readouterr().err


@pytest.mark.spark
def test_transform(spark: SparkSession) -> None:
    columns = "topic string, broker_id int, partition int, offset long, attribute string, value binary"
    rows = [("orders", 0, 0, 0, "a", b"\xff"), ("orders", 0, 1, 0, None, b""), ("orders", 0, 0, 22, "\ufffd", b"x")]
    written = transform(spark.createDataFrame(rows, columns), PLACES, "copy-", replaced=True)
    expected = [("copy-orders", 1, "a", b"\xff"), ("copy-orders", 0, None, b""), ("copy-orders", 1, "\ufffd", b"x")]
    columns = "topic string, partition int, attribute string, value binary"
    assert_df_equality(written, spark.createDataFrame(expected, columns), ignore_nullable=True)


@pytest.fixture
def pair(start_broker: StartBroker, tmp_path: Path) -> tuple[RunningBroker, RunningBroker]:
    """A source with three partitions for each topic, and a target with two."""
    source = start_broker("dev", tmp_path / "source", "--port", "0", "--partitions", "3")
    return source, start_broker("dev", tmp_path / "target", "--port", "0", "--partitions", "2")


def mirror(spark: SparkSession, arguments: list[str]) -> None:
    """Copy what there is."""
    with Mirror(parse_arguments(arguments)) as made:
        run(spark, made).awaitTermination()


@pytest.mark.spark
@pytest.mark.process
@pytest.mark.slow
def test_a_mirror_goes_on_and_takes_new_topics(
    spark: SparkSession, pair: tuple[RunningBroker, RunningBroker], tmp_path: Path
) -> None:
    source, target = (broker.address for broker in pair)
    folders = ["--checkpoint", str(tmp_path / "progress"), "--max-bytes-per-batch", "2000"]
    brokers = ["--from-brokers", str(source), "--to-brokers", str(target), "--pattern", "orders|paid.*"]
    common = [*brokers, *folders, "--prefix", "copy-"]
    odd = [Message(b"\xff\x00", "a"), Message(b""), Message(b"x", ""), Message("é".encode(), "é=1")]
    plain = {index: [Message(f"{index}-{n}".encode(), None) for n in range(40)] for index in range(3)}
    put_all(source, "orders", 0, [*odd, *plain[0]])
    put_all(source, "orders", 2, plain[2])
    put_all(source, "left-out", 0, odd)

    with pytest.raises(TooFewPartitions, match="topic 'orders': 3 partitions at the source, only 2 at the target"):
        mirror(spark, common)
    arguments = [*common, "--fold"]
    mirror(spark, arguments)
    assert set(FixedDirectory([target], shared_pool()).topics()) == {"copy-orders"}
    [first] = stored(target, "copy-orders").values()
    assert [message for message in first if message in plain[2]] == plain[2]
    assert [message for message in first if message not in plain[2]] == [*odd, *plain[0]]

    put_all(source, "orders", 1, plain[1])
    put_all(source, "paid-late", 1, odd)
    mirror(spark, arguments)
    mirror(spark, arguments)
    assert stored(target, "copy-orders") == {0: first, 1: plain[1]}
    assert stored(target, "copy-paid-late") == {1: odd}

    put_all(source, "paid-late", 1, [Message(b"z", "\ufffd")])
    with pytest.raises(StreamingQueryException, match=r"paid-late/0-1, offset \d+: the attribute holds U\+FFFD"):
        mirror(spark, arguments)
    mirror(spark, [*arguments, "--replaced-attributes"])
    assert stored(target, "copy-paid-late") == {1: [*odd, Message(b"z", "\ufffd")]}


class Driver:
    """The job in processes of its own: spark-submit, its JVM and the Python driver."""

    def __init__(self, arguments: list[str], log: Path) -> None:
        submit = Path(sys.executable).parent / "spark-submit"
        command = [submit, "--master", "local[2]", "--conf", "spark.ui.enabled=false", JOB, *arguments]
        environment = os.environ | spark_environment() | {"SPARK_LOCAL_IP": "127.0.0.1"}
        with log.open("a") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=output, env=environment, start_new_session=True
            )

    def kill(self) -> None:
        """End all of them at once, without warning."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(60)


def numbered(folder: Path) -> int:
    return sum(1 for file in folder.iterdir() if file.name.isdigit()) if folder.is_dir() else 0


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.process
@pytest.mark.slow
def test_a_killed_mirror_neither_loses_nor_repeats(
    spark: SparkSession, start_broker: StartBroker, tmp_path: Path
) -> None:
    source = start_broker("dev", tmp_path / "source", "--port", "0", "--partitions", "2").address
    target = start_broker("dev", tmp_path / "target", "--port", "0", "--partitions", "2").address
    sent = {index: [Message(f"{index}-{n:04}".encode(), f"n={n}") for n in range(1500)] for index in (0, 1)}
    for index, messages in sent.items():
        put_all(source, "orders", index, messages)
    progress, log = tmp_path / "progress", tmp_path / "driver.log"
    arguments = ["--from-brokers", str(source), "--to-brokers", str(target), "--topics", "orders"]
    arguments += ["--checkpoint", str(progress), "--max-bytes-per-batch", "2000"]
    driver = Driver(arguments, log)
    try:
        wait_until(
            # in the middle of a micro-batch: planned, and not noted as done
            lambda: driver.process.poll() is not None
            or numbered(progress / "offsets") > numbered(progress / "commits") >= 2,
            "micro-batches", 120,
        )  # fmt: skip
        assert driver.process.poll() is None, log.read_text()[-3000:]
    finally:
        driver.kill()
    assert numbered(progress / "commits") < 20, "it was over before it was killed"
    mirror(spark, [*arguments[:-1], "100k"])
    assert stored(target, "orders") == sent
