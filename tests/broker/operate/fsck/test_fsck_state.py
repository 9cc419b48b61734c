"""``metaq-broker fsck`` on a state file: what it finds, and what it saves of a damaged one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from manual_loop import Steps
from metaq_broker.cli import main
from metaq_broker.log.state.state_table import FILE_NAME, StateTable
from stored import QuickFiles
from stored_folder import fill


def stored(folder: Path) -> Path:
    """Entries a to c in the fresh part of the file, d to f behind it; then the broker was killed."""
    fill(folder)
    path, steps = folder / FILE_NAME, Steps()
    table = StateTable.open(QuickFiles(), path, steps)
    for key in "abc":
        table.put(key, key.encode() * 20)
    table.close()
    table = StateTable.open(QuickFiles(), path, steps)
    for key in "defa":
        table.put(key, key.encode() * 25)
        steps.run_all(1.0)
    return path


def entries(path: Path) -> dict[str, bytes]:
    return dict(StateTable.open(QuickFiles(), path, Steps()).items())


def broken(path: Path, value: bytes) -> bytes:
    content = path.read_bytes()
    at = content.index(value) + 5
    path.write_bytes(content[:at] + b"?" + content[at + 1 :])
    return path.read_bytes()


def test_a_sound_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = stored(tmp_path)
    before = path.read_bytes()
    assert main(["fsck", "--data", str(tmp_path)]) == 0
    assert "  rocketmq-state  ok  6 entries, " in capsys.readouterr().out
    path.write_bytes(before + b"torn")
    assert main(["fsck", "--data", str(tmp_path)]) == 0
    assert "    4 bytes at the end are not a whole record" in capsys.readouterr().out
    assert path.read_bytes() == before + b"torn"


@pytest.mark.parametrize(
    ("value", "lost"), [(b"b" * 20, {"b"}), (b"d" * 25, {"d"}), (b"a" * 20, set())], ids=["fresh", "behind", "replaced"]
)
def test_what_can_be_read_of_a_damaged_file_is_saved(
    value: bytes, lost: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = stored(tmp_path)
    damaged = broken(path, value)
    assert main(["fsck", "--data", str(tmp_path)]) == 1
    assert "  rocketmq-state  PROBLEM  " in capsys.readouterr().out
    assert path.read_bytes() == damaged
    assert main(["fsck", "--data", str(tmp_path), "--repair"]) == 1
    out = capsys.readouterr().out
    assert "  rocketmq-state  REPAIRED  " in out
    assert "    kept in rocketmq-state.damaged; entries that could not be read have older values, or none" in out
    assert out.splitlines()[-1].endswith("1 problem, all repaired")
    assert (tmp_path / "rocketmq-state.damaged").read_bytes() == damaged
    assert main(["fsck", "--data", str(tmp_path)]) == 0
    found = entries(path)
    assert found.keys() == set("abcdef") - lost
    assert found["a"] == b"a" * 25


def test_a_file_without_its_header_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = stored(tmp_path)
    damaged = b"?" + path.read_bytes()[1:]
    path.write_bytes(damaged)
    assert main(["fsck", "--data", str(tmp_path), "--repair", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["folders"][0]["state"]["problem"] == "damaged at byte 0: it does not begin as a state file"
    assert document["folders"][0]["state"]["repaired"] is False
    assert document["summary"]["repaired"] is False
    assert path.read_bytes() == damaged
    assert not (tmp_path / "rocketmq-state.damaged").exists()
