"""``metaq-broker fsck`` on the folder of a pair's member: who it is, its epochs, and what is in ``lost+found``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from metaq_broker.cli import main
from metaq_broker.log.streams import epochs
from metaq_broker.log.streams.member import FILE_NAME, MemberFile
from pair_disks import PairDisk, follow
from stored import QuickFiles
from waiting import in_loop


async def cut_member(root: Path) -> Path:
    """A member whose tail was cut, and one of whose streams was put aside; return its data folder."""
    old, new = PairDisk(root / "a"), PairDisk(root / "b")
    await old.lead(1)
    await old.put([b"known to both"])
    await follow(old, new)
    await old.put([b"known to one"])
    await old.put([b"only here"], 1)
    await old.close()
    await new.lead(2)
    await new.put([b"of epoch 2"])
    again = PairDisk(root / "a")
    (again.data / epochs.FILE_NAME).unlink()
    MemberFile.start(again.files, again.data, 1).promise(2, 2)
    await follow(new, again, epoch=2)
    await again.close()
    await new.close()
    return again.data


@in_loop
async def test_it_says_who_the_member_is_and_what_was_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = await cut_member(tmp_path)
    assert main(["fsck", "--data", str(data)]) == 0
    text = capsys.readouterr().out
    assert "of the pair of brokerId 1, 1 start, promised epoch 2" in text
    assert "t-0: bytes from offset 33 on were not its leader's: 32 bytes in" in text
    assert "t-1: the stream was not its leader's" in text
    assert "not looked at" not in text
    assert main(["fsck", "--json", "--data", str(data)]) == 0
    found = json.loads(capsys.readouterr().out)["folders"][0]["pair"]
    assert (found["broker_id"], found["starts"], found["promised"], found["faults"]) == (1, 1, 2, [])
    assert found["streams"]["t-0"] == 2
    kept = {each["stream"]: each["offset"] for each in found["lost_found"]}
    assert (kept["t-0"], kept["t-1"]) == (33, None)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda data: (data / FILE_NAME).write_bytes(b"?"), "it says who this broker is in its pair"),
        (lambda data: (data / epochs.FILE_NAME).write_bytes(b"?"), "stream-epochs cannot be read"),
        (lambda data: (data / epochs.FILE_NAME).unlink(), "stream-epochs is missing"),
    ],
)
def test_damaged_files_are_problems(damage, reason, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    data = tmp_path / "data"
    data.mkdir()
    MemberFile.start(QuickFiles(), data, 3)
    assert main(["fsck", "--data", str(data)]) == 0
    damage(data)
    assert main(["fsck", "--data", str(data)]) == 1
    assert reason in capsys.readouterr().out
