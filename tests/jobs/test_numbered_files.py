"""Documents with numbers: written whole, never changed, and what is no such document is left alone."""

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


def test_a_damaged_document_is_named(tmp_path: Path) -> None:
    (tmp_path / "00000000.json").write_bytes(b'{"v": 1, "ran')
    with pytest.raises(ValueError, match=r"/00000000\.json: not valid JSON"):
        NumberedFiles(str(tmp_path)).read(0)
    with pytest.raises(FileNotFoundError):
        NumberedFiles(str(tmp_path)).read(1)


def test_spark_is_informed_that_a_path_is_local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert spark_path("a b/c") == f"file://{tmp_path}/a b/c"
    assert spark_path("hdfs://n/a") == "hdfs://n/a"
