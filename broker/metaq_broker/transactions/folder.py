"""The folder of the transaction journal: made, locked against a second broker, checked for a Java broker's files."""

from __future__ import annotations

import contextlib
import logging
import re
from pathlib import Path
from typing import Final

from metaq_broker.storage.errors import StoreLocked
from metaq_broker.storage.files import Files

_log = logging.getLogger(__name__)

LOCK_NAME: Final = "lock"
_JAVA_JOURNAL: Final = re.compile(r"redo\.\d+|checkpoint\.\d+|heuristic\.log")


def claim_folder(files: Files, directory: Path) -> int:
    """Make ``directory`` if it is not there and lock it; return the descriptor that holds the lock.

    Raises:
        StoreLocked: Another broker uses the folder.
        OSError: It cannot be made.
    """
    _make(files, directory)
    foreign = [name for name in files.listdir(directory) if _JAVA_JOURNAL.fullmatch(name)]
    if foreign:
        rule = "transactions that a Java broker left unfinished in them are not taken over"
        _log.warning("%s holds %s of a Java broker; %s", directory, ", ".join(foreign), rule)
    try:
        return files.lock_exclusive(directory / LOCK_NAME)
    except BlockingIOError:
        owner = b""
        with contextlib.suppress(OSError):
            owner = files.read_bytes(directory / LOCK_NAME).strip()
        raise StoreLocked(directory, owner.decode(errors="replace") or "unknown") from None


def _make(files: Files, directory: Path) -> None:
    if files.exists(directory):
        return
    _make(files, directory.parent)
    files.makedir(directory)
    files.fsync_dir(directory.parent)
