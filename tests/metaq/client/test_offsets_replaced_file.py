"""A file that is replaced as a whole, and a disk that refuses it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from metaq.client.offsets import replace_file


def test_the_last_text_is_all_there_is(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for text in ("a long text: é", "short"):
        replace_file(path, text)
        assert path.read_text(encoding="utf-8") == text
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_disk_that_refuses_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def refused(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "file"
    replace_file(path, "before")
    monkeypatch.setattr(os, call, refused)
    with pytest.raises(OSError, match="No space left"):
        replace_file(path, "now")
    assert (path.read_text(), list(tmp_path.iterdir())) == ("before", [path])
