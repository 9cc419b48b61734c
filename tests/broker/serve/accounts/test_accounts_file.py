"""The file of accounts: read at the start, and when it has changed and rests."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest
from metaq_broker.log.files.files import Files
from metaq_broker.serve.accounts import accounts_file
from metaq_broker.serve.accounts.accounts_file import AccountsFile, AccountsFileRefused


def written(path: Path, *names: str) -> Path:
    path.write_text("accounts:\n" + "".join(f"- accessKey: {name}\n  secretKey: 12345678\n" for name in names))
    return path


def names(found: object) -> list[str]:
    return [] if found is None else list(getattr(found, "accounts"))  # noqa: B009


def test_a_changed_file_is_read_when_it_rests(tmp_path: Path) -> None:
    path = written(tmp_path / "accounts.yml", "a")
    file = AccountsFile(Files(), path)
    assert list(file.accounts.accounts) == ["a"]
    assert [file.look(), file.look()] == [None, None]
    written(path, "a", "b")
    assert file.look() is None  # it may be being written
    written(path, "a", "b", "c")
    assert file.look() is None
    assert names(file.look()) == ["a", "b", "c"]
    assert file.look() is None


def test_a_wrong_file_is_reported_once(tmp_path: Path) -> None:
    path = written(tmp_path / "accounts.yml", "a")
    file = AccountsFile(Files(), path)
    path.write_text("accounts: 5\n")
    assert file.look() is None
    with pytest.raises(AccountsFileRefused, match=r"file of accounts .*accounts\.yml: accounts: expected a list"):
        file.look()
    assert file.look() is None
    path.unlink()
    assert file.look() is None
    with pytest.raises(AccountsFileRefused, match="it cannot be read: No such file or directory"):
        file.look()
    written(path, "b")
    assert file.look() is None
    assert names(file.look()) == ["b"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"\xff", "it is not UTF-8"), (b"a b", "line 1: 'a b'; expected"), (None, "it cannot be read: No such file")],
)
def test_without_a_right_file_there_is_no_start(content: bytes | None, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "accounts.yml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(AccountsFileRefused, match=reason):
        AccountsFile(Files(), path)


def test_a_large_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts_file, "FILE_BYTES_MAX", 10)
    with pytest.raises(AccountsFileRefused, match="bytes; expected at most 10"):
        AccountsFile(Files(), written(tmp_path / "accounts.yml", "a"))


def test_it_follows_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(accounts_file, "LOOK_S", 0.005)
    path = written(tmp_path / "accounts.yml", "a")

    async def run() -> None:
        file = AccountsFile(Files(), path)
        file.start()
        path.write_text("wrong")
        async with asyncio.timeout(60):
            while "the accounts stay as they were" not in caplog.text:
                await asyncio.sleep(0.005)
            assert list(file.accounts.accounts) == ["a"]
            written(path, "b")
            while list(file.accounts.accounts) != ["b"]:
                await asyncio.sleep(0.005)
        await file.stop()

    asyncio.run(run())


@pytest.mark.parametrize("content", ["", "\n", "# accounts\n", "dataVersion: 5\n"])
def test_an_empty_file_takes_nobody_s_account(content: str, tmp_path: Path) -> None:
    """It is one that is being written, or that was when the disk was full."""
    path = written(tmp_path / "accounts.yml", "a")
    file = AccountsFile(Files(), path)
    path.write_text(content)
    assert file.look() is None
    with pytest.raises(AccountsFileRefused, match="it has neither globalWhiteRemoteAddresses nor accounts"):
        file.look()
    with pytest.raises(AccountsFileRefused, match="it has neither"):
        AccountsFile(Files(), path)


class Unreadable(Files):
    """Files that cannot be opened for a while."""

    fault: OSError | None = None

    def read_bytes(self, path: Path) -> bytes:
        if self.fault is not None:
            raise self.fault
        return super().read_bytes(path)


def test_a_file_that_cannot_be_read_now_is_read_later(tmp_path: Path) -> None:
    path, files = written(tmp_path / "accounts.yml", "a"), Unreadable()
    file = AccountsFile(files, path)
    written(path, "b")
    files.fault = OSError(errno.EMFILE, "Too many open files")
    assert file.look() is None
    for _ in range(2):
        with pytest.raises(AccountsFileRefused, match="it cannot be read: Too many open files"):
            file.look()
    files.fault = None
    assert names(file.look()) == ["b"]
    assert file.look() is None
