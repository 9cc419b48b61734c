"""The rounds of failover as ``python -m faults.failover`` runs them, the shortest of them; and their table."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fix_broker import DEADLINE_S

from faults.failover.__main__ import main
from faults.failover.consumers import MetaqMember
from faults.failover.copies import compared
from faults.failover.disks import Disk, can_mount
from faults.failover.kinds import FAULTS, Limit, Stage
from faults.failover.load import MetaqFamily, longest_gap_s
from faults.failover.members import Member, Pair, PairZooKeeper
from faults.failover.network import Network, available
from faults.failover.rounds import Rounds, percentile
from faults.groups.verdict import Fault as When
from faults.groups.verdict import Handled


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.long
def test_a_master_is_killed_and_nothing_is_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rounds", "2", "--no-network", "--folder", str(tmp_path), "--seed", "1"]) == 0
    said = capsys.readouterr().out
    for family in ("brokers", "zookeeper", "transactions", "rocketmq", "half-messages"):
        assert re.search(rf"^{family}: [1-9]\d* acknowledged, 0 lost, ", said, re.MULTILINE), said
    for topic in ("brokers", "zookeeper", "rocketmq"):
        told = rf"^consumer of {topic}: [1-9]\d* numbers .*, 0 times ended, 0 repeated without reason"
        assert re.search(told, said, re.MULTILINE), said
    assert "both copies are the same bytes" in said
    assert "| kill -9 of the master | 1 |" in said


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.skipif(not can_mount(), reason="file systems are mounted by root")
@pytest.mark.parametrize("kind", ["disk", "slave damaged"])
def test_full_disks_and_damage_together_with_a_kill(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--rounds", "3" if kind == "disk" else "1", "--only", kind, "--folder", str(tmp_path), "--seed", "3"]
    assert main([*arguments, "--no-network"]) == 0
    assert "both copies are the same bytes" in capsys.readouterr().out


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.skipif(not available(), reason="network namespaces need root")
def test_an_unplugged_master(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rounds", "1", "--only", "unplugged", "--folder", str(tmp_path), "--seed", "2"]) == 0
    assert "both copies are the same bytes" in capsys.readouterr().out


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.spark
def test_queries_go_on_while_a_master_is_killed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rounds", "2", "--no-network", "--spark", "--folder", str(tmp_path), "--seed", "4"]) == 0
    said = capsys.readouterr().out
    for query in ("brokers", "zookeeper", "rocketmq"):
        assert re.search(rf"^query {query}: [1-9]\d* rows in \d+ micro-batches: each is there once$", said, re.M), said
    assert "queries ended 0 times" in said


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.skipif(not available(), reason="network namespaces need root")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_program_that_is_stopped_leaves_nothing_behind(number: signal.Signals, tmp_path: Path) -> None:
    """Started as a shell starts a process in the background: with SIGINT ignored."""
    arguments = ["--rounds", "1000", "--only", "slave", "--folder", str(tmp_path / "run"), "--seed", "5"]
    command = [sys.executable, "-m", "faults.failover", *arguments]
    shell = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command]
    with subprocess.Popen(shell, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        said: list[str] = []
        for line in process.stdout:
            said.append(line)
            if line.startswith("round 1:"):
                os.kill(process.pid, number)
        assert process.wait() == 128 + number, said
    assert said[-1] == f"failover: stopped by {number.name}\n"
    spaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
    assert f"mq{process.pid}-" not in spaces
    assert not Path(f"/sys/class/net/mqb{process.pid}").exists()
    assert str(tmp_path) not in Path("/proc/mounts").read_text()
    assert not [pid for pid in Path("/proc").glob("[0-9]*") if str(tmp_path).encode() in command_line(pid)]


def command_line(process: Path) -> bytes:
    """Return the command line of a process; empty if it has just ended."""
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


@pytest.fixture
def rounds(tmp_path: Path) -> Rounds:
    """Of two families; nothing runs."""
    pair = Pair(Member("a", tmp_path, "127.0.0.1"), Member("b", tmp_path, "127.0.0.1"))
    stage = Stage(pair, PairZooKeeper(tmp_path / "zookeeper", "127.0.0.1"), None, {}, random.Random(1), 2.0)
    families = [MetaqFamily("brokers", "127.0.0.1:1"), MetaqFamily("zookeeper", "127.0.0.1:1")]
    return Rounds(tmp_path, stage, families)


def test_the_table(rounds: Rounds) -> None:
    for name in ("kill -9 of the master", "master frozen"):
        rounds.counts[name] = 3
        rounds.times_s[name, "brokers"] = [0.5, 0.1, 0.2]
        rounds.times_s[name, "zookeeper"] = [2.5]
    assert rounds.table() == [
        "| fault | rounds | brokers | zookeeper |",
        "|---|---|---|---|",
        "| kill -9 of the master | 3 | 0.20 / 0.50 | 2.50 / 2.50 |",
        "| master frozen | 3 | 0.20 / 0.50 | 2.50 / 2.50 |",
        "| *a new client, meanwhile* | 6 | - | - |",
    ]
    assert rounds.late() == ["kill -9 of the master, zookeeper: 2.50 s at the 99th percentile, limit 2 s"]


def test_every_fault_has_a_name_of_its_own() -> None:
    names = [fault.name for fault in FAULTS]
    assert len(set(names)) == len(names)


def test_limits() -> None:
    assert [limit.seconds(6.0) for limit in (Limit.KILL, Limit.SILENCE)] == [2.0, 8.0]


def test_percentiles() -> None:
    hundred = [float(number) for number in range(1, 101)]
    assert (percentile(hundred, 50), percentile(hundred, 99), percentile([3.0], 99)) == (50.0, 99.0, 3.0)


def test_the_longest_gap() -> None:
    assert longest_gap_s([1.0, 2.0, 2.5, 6.0, 7.0], 2.2) == 3.5
    assert longest_gap_s([1.0, 2.0, 9.0], 3.0) == 6.0
    assert longest_gap_s([1.0], 3.0) == 0.0


def test_rows_of_a_copy_are_compared_one_by_one() -> None:
    assert compared([b"0 0 a", b"0 1 a"], [b"0 1 a", b"0 0 a"]) == (2, [])
    count, sentences = compared([b"0 0 a", b"0 1 b"], [b"0 0 a", b"0 0 a", b"0 2 c"])
    assert (count, [sentence.partition(":")[0] for sentence in sentences]) == (
        2,
        ["1 rows are missing", "1 rows are there twice", "1 rows are unexpected"],
    )


def test_a_message_may_be_repeated_only_around_a_fault() -> None:
    consumer = MetaqMember("brokers", "127.0.0.1:1")
    consumer.handled = [Handled(10_000, "m", "0-0 5"), Handled(11_000, "m", "0-0 5"), Handled(20_000, "m", "0-0 5")]
    assert consumer.repeats([When("kill", 10_500, 30_000, True)]) == []
    assert len(consumer.repeats([When("kill", 19_000, 30_000, True)])) == 1


@pytest.mark.process
@pytest.mark.skipif(not can_mount(), reason="file systems are mounted by root")
def test_a_disk_is_filled_and_emptied(tmp_path: Path) -> None:
    with Disk(tmp_path / "a") as disk:
        file = disk.folder / "file"
        disk.fill()
        with pytest.raises(OSError, match="No space left"), open(file, "wb") as full:
            full.write(b"x" * 65536)
        disk.empty()
        file.write_bytes(b"x" * 65536)
    assert not file.exists()


@pytest.mark.process
@pytest.mark.skipif(not available(), reason="network namespaces need root")
def test_a_way_is_cut_in_one_direction_and_healed() -> None:
    with Network(("a", "b")) as network:
        a, b = network.hosts["a"], network.hosts["b"]

        def reaches(wait_s: float = DEADLINE_S) -> bool:
            """Whether packets of ``a`` arrive at ``b``, seen by ``b`` itself."""
            listen = f"import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout({wait_s}); "
            listen += f"s.bind(('{b.address}', 7007)); print('bound', flush=True); s.recv(9); print('heard')"
            listener = subprocess.Popen(
                [*b.command, "python3", "-c", listen], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            assert listener.stdout is not None
            assert listener.stdout.readline() == "bound\n"
            send = "import socket, time\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
            send += f"while True: s.sendto(b'x', ('{b.address}', 7007)); time.sleep(0.05)"  # a first packet may be lost
            sender = subprocess.Popen([*a.command, "python3", "-c", send])
            heard = listener.communicate(timeout=2 * DEADLINE_S)[0]
            sender.kill()
            sender.wait()
            return "heard" in heard

        assert reaches()
        network.cut(a, b.address)
        assert not reaches(wait_s=1)
        network.heal()
        assert reaches()
        network.unplug(b)
        assert not reaches(wait_s=1)
        network.heal()
        assert reaches()
