"""Jobs as a user runs them, against a real broker: with ``spark-submit``, or where that shows nothing more, in this
process, with the session that all tests share."""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from metaq.backends.metaq.pool import shared_pool
from metaq.backends.metaq.puts import put
from metaq.client.consumer import Consumer
from metaq.discovery.fixed import FixedDirectory
from metaq.model import Address, Message

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow]

Submit = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def submit(tmp_path: Path) -> Submit:
    """Run a job with ``spark-submit``, in a folder of its own."""
    environment = {
        **os.environ,
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    environment.pop("SPARK_CONF_DIR", None)

    def run(job: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        command = [
            *(BIN / "spark-submit", "--master", "local[2]", "--conf", "spark.ui.enabled=false"),
            *("--conf", "spark.sql.shuffle.partitions=2"),
            *("--properties-file", ROOT / "spark-conf" / "spark-defaults.conf", ROOT / "jobs" / job),
        ]
        return subprocess.run([*command, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True)

    return run


Main = Callable[..., str]


@pytest.fixture
def main(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Main:
    """Run a job's ``main`` in this process; return its report."""

    def run(job: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [job, *arguments])
        importlib.import_module(job).main()
        return capsys.readouterr().err

    return run


@pytest.fixture
def broker(start_broker, tmp_path: Path) -> Address:
    address: Address = start_broker("dev", tmp_path / "data", "--port", "0", "--partitions", "2").address
    return address


def stored(address: Address, topic: str) -> list[list[bytes]]:
    """The payloads of each partition that has any."""
    pool = shared_pool()
    directory = FixedDirectory([address], pool)
    consumer = Consumer(directory, pool)
    return [
        [frame.message.payload for frame in consumer.messages(topic, partition)]
        for partition in directory.partitions(topic)
    ]


def put_lines(address: Address, topic: str, *lines: bytes) -> None:
    with shared_pool().lease(address) as session:
        for line in lines:
            put(session, topic, 0, Message(line))


@pytest.mark.long
def test_lines_to_topic(submit: Submit, broker: Address, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.log").write_bytes(b"one\r\n\n\xff\xfe\nfour")
    (tmp_path / "in" / "b.log").write_bytes(b"five\n")
    done = submit("lines_to_topic.py", "--brokers", str(broker), "--topic", "lines", "--block-bytes", "6", "in")
    assert done.returncode == 0, done.stderr
    assert stored(broker, "lines") == [[b"one\r\n", b"\n"], [b"\xff\xfe\n", b"four", b"five\n"]]


@pytest.mark.long
def test_lines_to_topic_says_what_is_wrong(submit: Submit, broker: Address) -> None:
    done = submit("lines_to_topic.py", "--brokers", str(broker), "--topic", "lines", "absent.log")
    assert done.returncode == 1
    assert "lines_to_topic: absent.log: no such file, or a folder without files\n" in done.stdout
    assert "Traceback" not in done.stdout


UNREACHABLE = {
    "lines_to_topic": ["--brokers", "BROKER", "--topic", "a", __file__],
    "topic_to_parquet": ["--brokers", "BROKER", "--topics", "a", "--output", "FOLDER", "--checkpoint", "FOLDER"],
    "error_rates": ["--brokers", "BROKER", "--from-topic", "a", "--to-topic", "b", "--checkpoint", "FOLDER"],
    "mirror_topics": ["--from-brokers", "BROKER", "--to-brokers", "BROKER", "--topics", "a", "--checkpoint", "FOLDER"],
    "replay_range": ["--brokers", "BROKER", "--topic", "a", "--to-topic", "b", "--to-offsets", "latest"],
    "archive_topics": ["--brokers", "BROKER", "--topics", "a", "--output", "FOLDER"],
}


@pytest.mark.parametrize("job", UNREACHABLE)
def test_an_unreachable_broker_is_said_in_a_line(job: str, main: Main, tmp_path: Path) -> None:
    places = {"BROKER": "127.0.0.1:1", "FOLDER": str(tmp_path)}
    with pytest.raises(SystemExit) as ended:
        main(job, *(places.get(argument, argument) for argument in UNREACHABLE[job]))
    said = str(ended.value.code)
    assert said.startswith(f"{job}: ")
    assert "127.0.0.1:1" in said
    assert "\n" not in said


def test_a_failure_within_spark_is_said_in_a_line(main: Main, broker: Address, tmp_path: Path) -> None:
    put_lines(broker, "orders", b"first")
    (tmp_path / "lake").write_text("no folder")
    folders = ["--output", str(tmp_path / "lake"), "--checkpoint", str(tmp_path / "progress")]
    with pytest.raises(SystemExit, match=r"^topic_to_parquet: .*Parent path is not a directory: .*/lake$"):
        main("topic_to_parquet", "--brokers", str(broker), "--topics", "orders", *folders)


def test_topic_to_parquet_adds_what_is_new(main: Main, broker: Address, spark: SparkSession, tmp_path: Path) -> None:
    folders = ["--output", str(tmp_path / "lake"), "--checkpoint", str(tmp_path / "progress")]
    arguments = ["--brokers", str(broker), "--topics", "orders", *folders]
    put_lines(broker, "orders", b"first")
    assert "topic_to_parquet: done: 1 rows in, 1 rows out, " in main("topic_to_parquet", *arguments)
    put_lines(broker, "orders", b"\xff second")
    assert "topic_to_parquet: done: 1 rows in, 1 rows out, " in main("topic_to_parquet", *arguments)
    rows = spark.read.parquet(str(tmp_path / "lake")).orderBy("offset").collect()
    assert [bytes(row.value) for row in rows] == [b"first", b"\xff second"]
    for row in rows:
        assert (row.topic, row.date, row.hour) == ("orders", row.timestamp.date(), row.hour)
        assert (tmp_path / "lake" / "topic=orders" / f"date={row.date}" / f"hour={row.hour:02}").is_dir()


LAST_WINDOW = {"window_start": "2008-11-09T20:50:00.000Z", "window_end": "2008-11-09T20:55:00.000Z"}


@pytest.mark.long
def test_error_rates_sends_in_utc_what_a_run_that_died_has_left(
    main: Main, broker: Address, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    arguments = ["--brokers", str(broker), "--from-topic", "logs", "--to-topic", "rates"]
    arguments += ["--checkpoint", str(tmp_path / "progress")]
    put_lines(broker, "logs", b"081109 205000 1 ERROR dfs.DataNode: not fine\n")

    def die(*_: object) -> None:
        raise OSError("died")

    with monkeypatch.context() as patched:
        patched.setattr("error_rates.waiting_windows", die)
        with pytest.raises(SystemExit, match="error_rates: died"):
            main("error_rates", *arguments)
    assert "error_rates: done: 0 rows in, 1 rows out, " in main("error_rates", *arguments)
    [sent] = [json.loads(payload) for payloads in stored(broker, "rates") for payload in payloads]
    assert sent == {**LAST_WINDOW, "component": "dfs.DataNode", "lines": 1, "errors": 1, "error_rate": 1.0}


def test_error_rates_of_no_lines_sends_nothing(main: Main, broker: Address, tmp_path: Path) -> None:
    put_lines(broker, "logs")
    arguments = ["--brokers", str(broker), "--from-topic", "logs", "--to-topic", "rates"]
    arguments += ["--checkpoint", str(tmp_path / "progress")]
    assert "error_rates: done: 0 rows in, 0 rows out, " in main("error_rates", *arguments)


@pytest.mark.long
def test_error_rates_sends_every_window_of_a_finished_input(main: Main, broker: Address, tmp_path: Path) -> None:
    put_lines(
        broker,
        "logs",
        b"081109 203501 1 INFO dfs.FSDataset: fine\n",
        b"081109 203502 1 ERROR dfs.FSDataset: not fine\n",
        b"081109 203503 1 INFO dfs.DataNode: fine\n",
        b"081109 205000 1 INFO dfs.DataNode: so late that the first window is over\n",
    )
    arguments = ["--brokers", str(broker), "--from-topic", "logs", "--to-topic", "rates"]
    arguments += ["--checkpoint", str(tmp_path / "progress")]
    assert "error_rates: done: 4 rows in, 3 rows out, " in main("error_rates", *arguments)
    sent = [json.loads(payload) for payloads in stored(broker, "rates") for payload in payloads]
    window = {"window_start": "2008-11-09T20:35:00.000Z", "window_end": "2008-11-09T20:40:00.000Z"}
    assert sorted(sent, key=lambda rate: (rate["component"], rate["window_start"])) == [
        {**window, "component": "dfs.DataNode", "lines": 1, "errors": 0, "error_rate": 0.0},
        {**LAST_WINDOW, "component": "dfs.DataNode", "lines": 1, "errors": 0, "error_rate": 0.0},
        {**window, "component": "dfs.FSDataset", "lines": 2, "errors": 1, "error_rate": 0.5},
    ]
    put_lines(broker, "logs", b"081109 205001 1 ERROR dfs.DataNode: more for the last window\n")
    assert "error_rates: done: 1 rows in, 1 rows out, " in main("error_rates", *arguments)
    again = [json.loads(payload) for payloads in stored(broker, "rates") for payload in payloads]
    assert [rate for rate in again if rate not in sent] == [
        {**LAST_WINDOW, "component": "dfs.DataNode", "lines": 2, "errors": 1, "error_rate": 0.5}
    ]
    assert len(again) == len(sent) + 1
