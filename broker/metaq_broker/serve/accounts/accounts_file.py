"""The file of accounts: read at the start, and again whenever it changes.

It is checked every second, and read when it has not changed between two checks, because an editor may write it in
pieces. If the file is wrong or missing, the earlier accounts stay, and the log says why. If it cannot be read now, for
example for lack of file descriptors, it is tried again at every check.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Final

from metaq.errors import MetaqError
from metaq_broker.background import begin_work, stop_work
from metaq_broker.log.files.files import Files
from metaq_broker.serve.accounts.account_list import AccountList, AccountsInvalid, parse_accounts
from metaq_broker.serve.accounts.simple_yaml import YamlRefused

_LOG: Final = logging.getLogger(__name__)

LOOK_S: Final = 1.0
FILE_BYTES_MAX: Final = 16 << 20

_Stamp = tuple[int, int, tuple[int, int]]


class AccountsFileRefused(MetaqError):
    """The file ``path`` of accounts cannot be used: ``reason``."""

    def __init__(self, path: Path, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(path, reason)

    def __str__(self) -> str:
        return f"file of accounts {self.path}: {self.reason}"


class AccountsFile:
    """``accounts`` are the accounts in effect."""

    def __init__(self, files: Files, path: Path) -> None:
        """Read the file (blocking).

        Raises:
            AccountsFileRefused: It cannot be read, or is wrong.
        """
        self._files, self.path = files, path
        self._seen = self._read_stamp = self._stamp()
        self.accounts: AccountList = self._read()
        self._task: asyncio.Task[None] | None = None
        self._said = ""
        """Why the file was not reloaded, as last logged."""

    @property
    def changed_ms(self) -> int:
        """When the file was changed that was read last, in milliseconds since 1970."""
        return 0 if self._read_stamp is None else self._read_stamp[1] // 1_000_000

    def start(self) -> None:
        """Check for changes until ``stop``, unless that is running already."""
        if self._task is None:
            self._task = begin_work(self._follow(), "accounts file")

    async def stop(self) -> None:
        await stop_work(self._task)

    def look(self) -> AccountList | None:
        """Return the accounts of a file that has changed and is not being written any more (blocking; any thread).

        Raises:
            AccountsFileRefused: It cannot be read, or is wrong.
        """
        stamp, self._seen = self._seen, self._stamp()
        if stamp != self._seen or stamp == self._read_stamp:
            return None
        self._read_stamp = stamp
        try:
            return self._read()
        except AccountsFileRefused as error:
            if isinstance(error.__cause__, OSError):
                self._read_stamp = None  # it may be readable later
            raise

    def _read(self) -> AccountList:
        try:
            size = self._files.stat(self.path).size
            if size > FILE_BYTES_MAX:
                raise AccountsFileRefused(self.path, f"it has {size} bytes; expected at most {FILE_BYTES_MAX}")
            return parse_accounts(self._files.read_bytes(self.path).decode())
        except OSError as error:
            raise AccountsFileRefused(self.path, f"it cannot be read: {error.strerror}") from error
        except UnicodeDecodeError:
            raise AccountsFileRefused(self.path, "it is not UTF-8") from None
        except (YamlRefused, AccountsInvalid) as error:
            raise AccountsFileRefused(self.path, str(error)) from None

    def _stamp(self) -> _Stamp | None:
        try:
            found = self._files.stat(self.path)
            return found.size, found.mtime_ns, self._files.identity_of(self.path)
        except OSError:
            return None

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                found = await asyncio.to_thread(self.look)
            except AccountsFileRefused as error:
                if error.reason != self._said:
                    fields = {"path": self.path, "reason": error.reason}
                    _LOG.error(
                        "file of accounts not reloaded, the accounts stay as they were", extra={"fields": fields}
                    )
                self._said = error.reason
                continue
            if found is not None:
                self.accounts, self._said = found, ""
                fields = {"path": self.path, "accounts": len(found.accounts)}
                _LOG.info("file of accounts reloaded", extra={"fields": fields})
