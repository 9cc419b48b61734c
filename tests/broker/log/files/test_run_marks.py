"""A data folder and a journal that were put back to copies of different moments."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from metaq_broker.log.files.files import Files
from metaq_broker.log.files.run_marks import FILE_NAME, DifferentRuns, begin_run


class Folders:
    """A broker's folders, and copies of them by name."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.data, self.journal = folder, folder / "data", folder / "log" / "transactions"
        self.data.mkdir()

    def start(self) -> None:
        begin_run(Files(), self.data, self.journal)
        (self.journal / "00000000000000000000.journal").touch()

    def copy(self, name: str) -> None:
        for source, part in ((self.data, "data"), (self.journal, "journal")):
            shutil.copytree(source, self.folder / name / part)

    def put_back(self, name: str, *parts: str) -> None:
        for part, target in (("data", self.data), ("journal", self.journal)):
            if part in parts:
                shutil.rmtree(target)
                shutil.copytree(self.folder / name / part, target)


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    made = Folders(tmp_path)
    made.start()
    made.copy("first")
    made.start()
    return made


@pytest.mark.parametrize("part", ["data", "journal"])
def test_one_of_them_is_put_back(folders: Folders, part: str) -> None:
    folders.put_back("first", part)
    before = {path: path.read_bytes() for path in folders.folder.rglob(FILE_NAME)}
    for _ in range(2):
        with pytest.raises(DifferentRuns, match=r"data folder .*data and transaction journal .* restore both"):
            folders.start()
    assert {path: path.read_bytes() for path in folders.folder.rglob(FILE_NAME)} == before


def test_both_are_put_back(folders: Folders) -> None:
    folders.put_back("first", "data", "journal")
    folders.start()
    folders.start()


def test_a_journal_that_was_moved_away(folders: Folders) -> None:
    folders.put_back("first", "data")
    shutil.rmtree(folders.journal)
    folders.start()
    folders.start()


def test_folders_of_an_older_version(folders: Folders) -> None:
    for path in (folders.data, folders.journal):
        (path / FILE_NAME).unlink()
    folders.copy("older")
    folders.start()
    folders.copy("newer")
    for part in ("data", "journal"):
        folders.put_back("newer", "data", "journal")
        folders.put_back("older", part)
        with pytest.raises(DifferentRuns):
            folders.start()


@pytest.mark.parametrize("writes", range(4))
@pytest.mark.parametrize("earlier_runs", [0, 2])
def test_a_crash_at_any_moment_of_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int, earlier_runs: int
) -> None:
    folders, left, write = Folders(tmp_path), writes, Files.write_atomic
    for _ in range(earlier_runs):
        folders.start()

    def some(files: Files, path: Path, data: bytes) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError("no space")
        write(files, path, data)

    with monkeypatch.context() as patched:
        patched.setattr(Files, "write_atomic", some)
        folders.start()
    folders.start()
    folders.start()


def test_a_damaged_file_does_not_prevent_a_start(folders: Folders, caplog: pytest.LogCaptureFixture) -> None:
    (folders.data / FILE_NAME).write_bytes(b"?")
    folders.start()
    assert "older copy is not noticed" in caplog.text
    folders.start()
