"""Remembers the ZooKeeper session of the last registration, so that a broker recognises its own node after a crash.

File ``zookeeper-session`` in the data folder, UTF-8 text, written atomically::

    metaq-zookeeper-session 1
    session ID                       of the session that has the broker's nodes, hexadecimal
    crc32 XXXXXXXX                   of all lines before, 8 hex digits

Session ids are unique, so a node of this session was created with this data folder. If the file is missing or cannot be
read, every node of the broker id counts as another broker's.

Source: docs/operations.md, "ZooKeeper".
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from metaq_broker.log.files.files import Files
from metaq_broker.log.files.sealed_files import seal, unseal

FILE_NAME: Final = "zookeeper-session"
_TITLE: Final = "metaq-zookeeper-session 1"
_WORD: Final = "session "

_LOG: Final = logging.getLogger(__name__)


class OwnSession:
    """The file of one data folder. All methods block; they are called from one thread at a time."""

    def __init__(self, files: Files, data_path: Path) -> None:
        self._files, self._path = files, data_path / FILE_NAME
        self._written: int | None = None

    def read(self) -> int | None:
        """Return the session's id; ``None`` if it is not known."""
        try:
            if not self._files.exists(self._path):
                return None
            [line] = unseal(_TITLE, self._files.read_bytes(self._path))
            return int(line.removeprefix(_WORD), 16)
        except (ValueError, OSError) as error:
            _LOG.warning("the previous session is unknown", extra={"fields": {"file": self._path, "reason": error}})
            return None

    def write(self, session_id: int | None) -> None:
        """Record the session. If that fails, a start after a crash waits for the session to expire before it serves."""
        if session_id is None or session_id == self._written:
            return
        try:
            self._files.write_atomic(self._path, seal(_TITLE, [f"{_WORD}{session_id:x}"]))
            self._written = session_id
        except OSError as error:
            _LOG.warning("the session is not recorded", extra={"fields": {"file": self._path, "reason": error}})
