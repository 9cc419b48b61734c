"""The demo's log lines: same seed, same bytes, and every kind of line that careless code breaks."""

import itertools
import subprocess
import sys
from pathlib import Path

import pytest
from log_generator import log_lines, parse_arguments

JOB = Path(__file__).parents[2] / "jobs" / "log_generator.py"


def test_same_seed_gives_same_bytes() -> None:
    assert list(log_lines(500, seed=3)) == list(log_lines(500, seed=3))
    assert list(log_lines(500, seed=3)) != list(log_lines(500, seed=4))


def test_lines_that_careless_code_breaks_are_among_them() -> None:
    lines = list(log_lines(3000, seed=7))
    assert len(lines) == 3000
    assert all(line.count(b"\n") == 1 and line.endswith(b"\n") for line in lines[:-1])
    assert b"\n" not in lines[-1]
    assert b"\n" in lines
    assert any(line.endswith(b"\r\n") for line in lines)
    assert any(b"\xff" in line for line in lines)


def test_times_never_go_back() -> None:
    stamps = [line[:13] for line in log_lines(2000, seed=1) if line[:6].isdigit()]
    assert all(earlier <= later for earlier, later in itertools.pairwise(stamps))


@pytest.mark.parametrize("count", [0, 1])
def test_few_lines(count: int) -> None:
    assert len(list(log_lines(count, seed=1))) == count


@pytest.mark.process
def test_command_writes_the_file(tmp_path: Path) -> None:
    output = tmp_path / "lines.log"
    subprocess.run([sys.executable, JOB, output, "--lines", "100", "--seed", "5"], check=True)
    assert output.read_bytes() == b"".join(log_lines(100, seed=5))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{tmp}/out", "--lines", "-1"], "--lines -1: expected 0 or more"),
        (["{tmp}/no/such/out"], "its folder does not exist"),
        (["{tmp}/out", "--lines", "many"], "invalid int value: 'many'"),
    ],
)
def test_wrong_arguments_are_named(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse_arguments([argument.format(tmp=tmp_path) for argument in arguments])
    assert said in capsys.readouterr().err
