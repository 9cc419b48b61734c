"""``metaq lag`` of Spark checkpoints, and ``--watch``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from metaq.cli.checkpoint import read_query
from metaq.formats.checkpoint_offsets import to_json
from metaq.formats.frames import HEADER_BYTES, encode_frame
from metaq.model import Address, Partition, TopicPartition
from metaq.protocols.remoting.codes import ResponseCode
from metaq.protocols.remoting.headers.offsets import GetMaxOffset
from metaq.testing.memory import MemoryBroker
from metaq.testing.rocketmq_server import ScriptedCluster

Run = Callable[..., tuple[int, str, str]]

AT = Address("127.0.0.1", 8123)
SIZE = HEADER_BYTES + 1
QUEUE = Partition("broker-a", 0)


def checkpoint(folder: Path, *batches: list[str], committed: int | None) -> Path:
    """A checkpoint with batches 0, 1 ..., each a list of lines, of which those up to ``committed`` are."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    for number, lines in enumerate(batches):
        (folder / "offsets" / str(number)).write_text("\n".join(["v1", '{"batchWatermarkMs":0}', *lines]))
        (folder / "offsets" / f".{number}.crc").write_bytes(b"crc")
        if committed is not None and number <= committed:
            (folder / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    return folder


def line(topic: str, **offsets: int) -> str:
    return json.dumps(to_json({at(topic, name): offset for name, offset in offsets.items()}))


def at(topic: str, name: str) -> TopicPartition:
    return TopicPartition(topic, Partition.parse_any(name.replace("_", "-").removeprefix("p")))


@pytest.fixture
def broker(memory: dict[Address, MemoryBroker]) -> MemoryBroker:
    memory[AT] = broker = MemoryBroker({"orders": 3})
    for index in (0, 1):
        broker.partition("orders", index).append(b"".join(encode_frame(i, 0, b"x") for i in range(10)))
    return broker


def test_a_query_is_behind_what_its_newest_committed_batch_has(
    broker: MemoryBroker, command: Run, tmp_path: Path
) -> None:
    read, planned = line("orders", p0_0=4 * SIZE, p0_9=7), line("orders", p0_0=10 * SIZE, p0_1=10 * SIZE)
    folder = checkpoint(tmp_path, [line("orders", p0_0=0)], ['{"logOffset":3}', read], ["-", planned], committed=1)
    status, out, _ = command("-c", str(AT), "lag", "--checkpoint", str(folder))
    assert status == 0
    assert [row.split() for row in out.splitlines()] == [
        ["source", "topic", "partition", "position", "end", "bytes_behind", "remark"],
        ["2", "orders", "0-0", str(4 * SIZE), str(10 * SIZE), str(6 * SIZE), "-"],
        ["2", "orders", "0-1", "-", str(10 * SIZE), str(10 * SIZE), "new"],
        ["2", "orders", "0-2", "-", "0", "0", "new"],
        ["2", "orders", "0-9", "7", "-", "-", "gone"],
    ]
    assert command("-c", str(AT), "lag", "--checkpoint", f"file:{folder}", "orders")[0] == 0
    status, _, err = command("-c", str(AT), "lag", "--checkpoint", str(folder), "others")
    assert (status, "the query does not read 'others'; it reads orders" in err) == (2, True)


def test_a_query_with_named_sources(broker: MemoryBroker, command: Run, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, [line("orders", p0_0=SIZE)], committed=0)
    named = ["sales:" + line("orders", p0_0=4 * SIZE), 'files:{"logOffset":3}', "orders:" + line("orders", p0_0=SIZE)]
    (folder / "offsets" / "0").write_text("\n".join(["v2", "{}", *named]))
    rows = command("-c", str(AT), "lag", "--checkpoint", str(folder), "--json")[1].splitlines()
    found = {row["source"]: row["position"] for row in map(json.loads, rows) if row["partition"] == "0-0"}
    assert found == {"orders": SIZE, "sales": 4 * SIZE}


def test_partitions_that_are_not_what_they_were(broker: MemoryBroker, command: Run, tmp_path: Path) -> None:
    known = {at("orders", "p0_0"): "0" * 32, at("orders", "p0_1"): broker.partition("orders", 1).incarnation}
    offsets = {at("orders", "p0_0"): SIZE, at("orders", "p0_1"): 99 * SIZE}
    folder = checkpoint(tmp_path, [json.dumps(to_json(offsets, known))], committed=0)
    rows = command("-c", str(AT), "lag", "--checkpoint", str(folder), "--json")[1].splitlines()
    assert [(row["bytes_behind"], row["remark"]) for row in map(json.loads, rows)][:2] == [
        (10 * SIZE, "recreated"),
        (0, "ahead"),
    ]


def test_before_the_first_commit_nothing_was_read(broker: MemoryBroker, command: Run, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, [line("orders", p0_0=SIZE)], committed=None)
    rows = command("-c", str(AT), "lag", "--checkpoint", str(folder), "--json")[1].splitlines()
    assert json.loads(rows[0])["bytes_behind"] == 10 * SIZE


def test_a_query_whose_topics_are_gone_before_it_has_read_any(
    broker: MemoryBroker, command: Run, tmp_path: Path
) -> None:
    folder = checkpoint(tmp_path, [line("gone", p0_0=SIZE)], committed=None)
    status, _, err = command("-c", str(AT), "lag", "--checkpoint", str(folder))
    says = f"metaq: --checkpoint {folder}: no broker has its topics, and no batch is committed\n"
    assert (status, err) == (1, says)


def test_a_query_of_rocketmq(cluster: ScriptedCluster, rocketmq: str, command: Run, tmp_path: Path) -> None:
    cluster.append("orders", QUEUE, [b"x"] * 5)
    text = '{"v": 2, "topics": {"orders": {"broker-a:0": 2, "broker-a:1": 0}}, "incarnations": {}}'
    folder = checkpoint(tmp_path, [text], committed=0)
    rows = command("-c", rocketmq, "lag", "--checkpoint", str(folder), "--json")[1].splitlines()
    assert json.loads(rows[0]) == {
        "source": 1, "topic": "orders", "partition": "broker-a:0", "position": 2, "end": 5, "messages_behind": 3,
        "remark": None,
    }  # fmt: skip
    assert command("-c", "127.0.0.1:1", "lag", "--checkpoint", str(folder)) == (
        2, "", f"metaq: --checkpoint {folder}: the query reads rocketmq, and '127.0.0.1:1' is metaq; see --cluster\n",
    )  # fmt: skip


def test_the_checkpoint_of_an_earlier_version_is_read() -> None:
    (source,) = read_query(str(Path(__file__).parents[2] / "golden" / "older" / "checkpoint"))
    assert (source.label, source.system, source.topics) == (1, "metaq", ("orders",))
    assert source.progress.offsets[TopicPartition("orders", Partition(7, 1))] == 6980


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, "no batch is in its folder offsets; is it the checkpointLocation?"),
        ({"commits/3": "v1\n{}", "offsets/2": "v1\n{}\n-"}, "batch 3 is committed, and its offsets are not there"),
        ({"offsets/0": "v3\n{}\n-"}, "offsets/0 is in Spark's form 'v3', known is v1 and v2"),
        ({"offsets/0": "v2\n{}\n-"}, "offsets/0 holds '-' where the name of a source and its offset should be"),
        ({"offsets/0": "v1\n{}\n-\n{}"}, "none of its 2 sources reads MetaQ or RocketMQ"),
        ({"offsets/0": 'v1\n{}\n{"v": 9, "topics": {}}'}, "source 1: it was written by a newer metaq-spark"),
        ({"offsets/0": "v1"}, "offsets/0 is cut off"),
        ({"offsets/0": ""}, "offsets/0 is in Spark's form ''"),
    ],
)
def test_what_is_no_checkpoint_is_said(files: dict[str, str], says: str, tmp_path: Path, command: Run) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    status, _, err = command("-c", str(AT), "lag", "--checkpoint", str(tmp_path))
    assert (status, says in err, err.count("\n")) == (2, True, 1), err


def test_other_file_systems_and_missing_names(command: Run) -> None:
    assert "hdfs is another file system" in command("lag", "--checkpoint", "hdfs://nn/x")[2]
    assert command("lag") == (2, "", "metaq: lag: name a group, or --checkpoint DIR\n")


def test_a_terminal_is_drawn_again(
    cluster: ScriptedCluster, rocketmq: str, command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Pause:
        """Lets two rounds pass, as if Ctrl-C came in the third."""

        def __init__(self) -> None:
            self.rounds = 0

        def wait(self, seconds: float) -> None:
            assert seconds == 2.5
            self.rounds += 1
            if self.rounds == 2:
                raise KeyboardInterrupt

    monkeypatch.setattr("metaq.cli.lag.threading.Event", Pause)
    watch = ("-c", rocketmq, "lag", "billing", "orders", "--watch", "2.5")
    status, out, _ = command(*watch)
    blocks = out.rstrip("\n").split("\n\n")
    assert (status, len(blocks), "\x1b" in out) == (130, 2, False)
    assert blocks[1].splitlines()[1:] == blocks[0].splitlines()[1:]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    for name, cleared in (("xterm", 2), ("dumb", 0)):
        monkeypatch.setenv("TERM", name)
        assert command(*watch)[1].count("\x1b[H\x1b[2J") == cleared
    assert "expected seconds, 0.1 to 86400" in _refused(command, "lag", "billing", "--watch", "0")


def _refused(command: Run, *arguments: str) -> str:
    """What argparse says."""
    with pytest.raises(SystemExit) as ended:
        command(*arguments)
    assert ended.value.code == 2
    return command("lag")[2]


@pytest.mark.process
def test_watching_prints_blocks_until_ctrl_c(cluster: ScriptedCluster, rocketmq: str) -> None:
    cluster.append("orders", QUEUE, [b"x"] * 5)
    program = [sys.executable, "-m", "metaq.cli.main", "-c", rocketmq, "lag", "billing", "orders", "--watch", "0.1"]
    with subprocess.Popen(
        [*program, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        rows = [json.loads(process.stdout.readline()) for _ in range(4)]
        assert [row["messages_behind"] for row in rows] == [5, 0, 5, 0]
        assert rows[0]["time"] == rows[1]["time"] < rows[2]["time"]
        cluster.broker().refuse(GetMaxOffset.CODE, ResponseCode.SYSTEM_ERROR, "out of order")
        assert "out of order" in process.stderr.readline(), "a failure is noted, and not the end"
        assert json.loads(process.stdout.readline())["messages_behind"] in (0, 5)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
