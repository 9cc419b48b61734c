"""Lets an asynchronous slave follow the topics of its master's configuration (``autoSyncMasterConfig=true``).

Every ``ASK_S``, the slave compares the master's configuration with the last one that it handled, by the checksum in
``stats`` or, if there is none, by the text. If it changed, the slave rewrites its own server.ini atomically, keeps the
old file beside it, and reloads it. A configuration that cannot be followed changes nothing; the reason is logged, and
the slave tries again every ``RETRY_S``, or when the master's configuration changes. That a master cannot be reached is
reported by the copying of partitions.

Source: docs/replication.md, "Following the master's topics".
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from metaq.errors import MetaqError, ProtocolError
from metaq.model import Address
from metaq_broker.log.files.files import Files
from metaq_broker.operate.config.configuration import read_file
from metaq_broker.operate.config.following import follow_topics
from metaq_broker.replication.master_connection import MasterAddress, MasterConnection, MasterNotFound
from metaq_broker.replication.peer import Connect, Peer, PeerLost, PeerRefused

_LOG: Final = logging.getLogger(__name__)

ASK_S: Final = 2.0
"""Seconds between two questions."""

RETRY_S: Final = 30.0
REQUEST_S_MAX: Final = 5.0
BACKUP_SUFFIX: Final = ".bak"


class NotFollowed(MetaqError):
    """The master's topics cannot be followed; the text says why."""


class ConfigFollower:
    """Follows the master between ``start`` and ``stop``. ``reload`` makes the broker read ``file``, its server.ini,
    again.
    """

    def __init__(
        self,
        master: MasterAddress,
        connect: Connect,
        file: Path | None,
        files: Files,
        reload: Callable[[], Awaitable[object]],
    ) -> None:
        self._file, self._files, self._reload = file, files, reload
        self._connection = MasterConnection(master, connect, REQUEST_S_MAX, (ASK_S, ASK_S))
        self._address: Address | None = None  # where the master was found
        self._sign: str | bytes | None = None  # of the master's configuration that was handled last
        self._retry_at: float | None = None
        self._reload_due = False
        self._stopping = self._connection.stopping
        self.trouble: str | None = None
        """Why the master's topics are not followed; ``None`` if they are, as of the last answer of the master."""

    def start(self) -> None:
        self._connection.start(self, "following the master's topics")

    async def stop(self) -> None:
        """Stop; a change that is in progress is completed."""
        await self._connection.stop()

    async def check(self, peer: Peer) -> None:
        self._address = peer.address
        self._sign = None  # compare again: this slave's own file may have changed meanwhile

    async def work(self, peer: Peer) -> None:
        while not self._stopping.is_set():
            await self._look(peer)
            await self._connection.sleep(ASK_S)

    def disconnected(self, error: Exception | None) -> None:
        if isinstance(error, PeerLost | PeerRefused | ProtocolError | MasterNotFound):
            _LOG.debug("the master's configuration is not known", extra={"fields": {"reason": error}})
        elif error is not None:
            _LOG.error("bug while following the master's topics", exc_info=error)
            self.trouble = f"{type(error).__name__}: {error}"

    # ---- one look

    async def _look(self, peer: Peer) -> None:
        checksum = await peer.config_checksum()
        text = await peer.config_text() if checksum is None else None
        sign = text if checksum is None else checksum
        now = asyncio.get_running_loop().time()
        if sign == self._sign and (self._retry_at is None or now < self._retry_at):
            return
        if text is None:
            text = await peer.config_text()
        self._sign = sign
        try:
            await self._take_over(text)
        except (MetaqError, OSError) as error:
            self._retry_at = now + RETRY_S
            self._note_trouble(str(error))
        else:
            self._retry_at, self.trouble = None, None

    async def _take_over(self, master_text: bytes) -> None:
        if self._file is None:
            raise NotFollowed("this broker was started without a configuration file, there is nothing to rewrite")
        own_text = await asyncio.to_thread(read_file, self._file)
        merged = follow_topics(master_text, own_text, f"configuration of {self._address}", str(self._file))
        if merged != own_text:
            await asyncio.to_thread(rewrite, self._files, self._file, own_text, merged)
            self._reload_due = True
        if self._reload_due:
            fields = {"master": self._address, "file": self._file}
            _LOG.info("taking over the topics of the master", extra={"fields": fields})
            await self._reload()
            self._reload_due = False

    def _note_trouble(self, reason: str) -> None:
        if reason != self.trouble and not self._stopping.is_set():
            _LOG.error("topics of the master are not taken over", extra={"fields": {"reason": reason}})
        self.trouble = reason


def rewrite(files: Files, file: Path, before: bytes, after: bytes) -> None:
    """Replace the contents of ``file`` atomically, and keep the previous ones in ``FILE.bak`` (blocking).

    If ``file`` is a link, its target is rewritten. The permissions stay.

    Raises:
        OSError: The folder or the disk refuses; the file is unchanged.
    """
    target = file.resolve()
    fresh, backup = (target.with_name(target.name + suffix) for suffix in (".new", BACKUP_SUFFIX))
    for path, content in ((backup, before), (fresh, after)):
        files.write_atomic(path, content)
        shutil.copymode(target, path)
    files.rename(fresh, target)
    files.fsync_dir(target.parent)
