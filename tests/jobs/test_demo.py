"""The demo as ``make demo`` runs it: a small input of one's own, and an interruption."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "jobs" / "demo.py"

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """One in which temporary folders are made below the test's own."""
    (tmp_path / "temporary").mkdir()
    return {**os.environ, "TMPDIR": str(tmp_path / "temporary")}


def demo_folders(environment: dict[str, str]) -> list[Path]:
    return list(Path(environment["TMPDIR"]).glob("metaq-demo-*"))


def is_listening(address: str) -> bool:
    host, port = address.split(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


@pytest.mark.long
def test_own_files_come_through_byte_for_byte(environment: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "my logs"
    folder.mkdir()
    lines = [b"081109 203501 1 ERROR dfs.FSDataset: x\r\n"] * 3000 + [b"\n", b"\xff\xfe"]
    (folder / "hdfs.log").write_bytes(b"".join(lines))
    (folder / "empty.log").write_bytes(b"")
    (folder / "other.log").write_bytes(b"no line end")
    available = f"3,003 lines, {sum(map(len, lines)) + len(b'no line end'):,} bytes"
    done = subprocess.run([sys.executable, DEMO, folder], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"sent       {available}\n  received   {available}\n" in done.stdout
    assert re.search(r"dfs\.FSDataset +3,000 +3,000 +100\.0%", done.stdout)
    assert done.stdout.endswith("Every line came through, in order, byte for byte.\n")
    assert demo_folders(environment) == []


@pytest.mark.long
def test_rocketmq_s_side_gives_the_same(environment: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "app.log"
    file.write_bytes(b"".join(b"081109 203501 1 ERROR dfs.FSDataset: %d\r\n" % number for number in range(3000)))
    command = [sys.executable, DEMO, "--protocol", "rocketmq", file]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"dfs\.FSDataset +3,000 +3,000 +100\.0%", done.stdout)
    assert done.stdout.endswith("Every line came through, in order, byte for byte.\n")
    assert demo_folders(environment) == []


def test_wrong_input_is_reported_at_once(environment: dict[str, str]) -> None:
    done = subprocess.run([sys.executable, DEMO, "absent.log"], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "demo: absent.log: no such file, or a folder without files\n"


@pytest.mark.long
def test_interruption_leaves_nothing_behind(environment: dict[str, str]) -> None:
    """``SIGTERM`` goes the same way: ``test_cluster_demo.py`` sends both."""
    command = [sys.executable, DEMO]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        assert demo.stderr is not None
        said = ""
        while "Warming up" not in said:
            line = demo.stdout.readline()
            assert line, said + demo.stderr.read()
            said += line
        [address] = re.findall(r"broker +(\S+),", said)
        assert is_listening(address)
        demo.send_signal(signal.SIGINT)
        _, complaints = demo.communicate(timeout=120)
    assert demo.returncode == 128 + signal.SIGINT
    assert complaints == "\nInterrupted. The broker and Spark are stopped.\n"
    assert not is_listening(address)
    assert demo_folders(environment) == []
