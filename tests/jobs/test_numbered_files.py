"""Documents with numbers: written whole, never changed, and what is no such document is left alone."""

import os
from pathlib import Path

import pytest
from numbered_files import NumberedFiles, spark_path


def test_documents_come_back_in_order(tmp_path: Path) -> None:
    files = NumberedFiles(str(tmp_path / "below" / "folder"))
    assert files.numbers() == []
    for number in (10, 2, 123456789):
        files.add(number, {"number": number, "text": "é"})
    (tmp_path / "below" / "folder" / ".00000003.77.draft").write_text("{")
    (tmp_path / "below" / "folder" / "4.json").write_text("{}")
    assert files.numbers() == [2, 10, 123456789]
    assert NumberedFiles(f"file://{tmp_path}/below/folder").read(10) == {"number": 10, "text": "é"}


def test_a_number_is_given_once(tmp_path: Path) -> None:
    files = NumberedFiles(str(tmp_path))
    files.add(7, "first")
    with pytest.raises(FileExistsError, match=r"/00000007\.json is there already: does the job run twice\?"):
        files.add(7, "second")
    assert files.read(7) == "first"
    assert [file.name for file in tmp_path.iterdir()] == ["00000007.json"]


def test_a_number_is_given_once_to_two_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = NumberedFiles(str(tmp_path))
    files.add(7, "first")
    monkeypatch.setattr(files, "numbers", list)  # as another process saw them before
    with pytest.raises(FileExistsError):
        files.add(7, "second")
    assert files.read(7) == "first"
    assert [file.name for file in tmp_path.iterdir()] == ["00000007.json"]


def test_a_document_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[int, list[str]]] = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append((os.fstat(handle).st_ino, os.listdir(tmp_path))))
    NumberedFiles(str(tmp_path)).add(7, "text")
    (document, before), (folder, after) = synced
    assert (document, folder) == ((tmp_path / "00000007.json").stat().st_ino, tmp_path.stat().st_ino)
    assert "00000007.json" not in before
    assert after == ["00000007.json"]


@pytest.mark.parametrize(("content", "said"), [(b'{"v": 1, "ran', "not valid JSON .*"), (b"", "empty")])
def test_a_damaged_document_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "00000000.json").write_bytes(content)
    with pytest.raises(ValueError, match=rf"/00000000\.json: {said}: it was damaged, as by a power loss; restore"):
        NumberedFiles(str(tmp_path)).read(0)
    with pytest.raises(FileNotFoundError):
        NumberedFiles(str(tmp_path)).read(1)


def test_spark_is_informed_that_a_path_is_local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert spark_path("a b/c") == f"file://{tmp_path}/a b/c"
    assert spark_path("hdfs://n/a") == "hdfs://n/a"
