"""Records which run of the broker used a folder last: data folder and transaction journal must agree.

A backup contains both from one moment. If only one of them is restored, the journal refers to messages that do not
exist, or lacks decisions about messages that do. So each start writes a new random name of the run into both folders. A
broker that finds different names does not start: an operator must decide which of the two is right, by restoring both
or by moving the journal away. A new journal agrees with any data folder.

::

    metaq-last-run 1
    RUN [NEXT]                       32 hex digits, or - if there was none; NEXT only during a start
    crc32 XXXXXXXX

The journal names both runs before the data folder gets the new one, and only the new one after it: a crash at any
moment leaves two folders that agree. Copies that were made during one run cannot be told apart.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from uuid import uuid4

from metaq.errors import MetaqError
from metaq_broker.log.files.files import Files
from metaq_broker.log.files.sealed_files import seal, unseal

_LOG: Final = logging.getLogger(__name__)

FILE_NAME: Final = "last-run"
_TITLE: Final = "metaq-last-run 1"
_NONE: Final = "-"


class DifferentRuns(MetaqError):
    """The folders ``data`` and ``journal`` were used last by different runs: one is an older copy."""

    def __init__(self, data: str, journal: str) -> None:
        self.data, self.journal = data, journal
        super().__init__(data, journal)

    def __str__(self) -> str:
        return (
            f"data folder {self.data} and transaction journal {self.journal} are copies of different moments; restore "
            "both from the same backup, or move the journal away, which gives up prepared transactions and the "
            "decisions of exactly-once queries"
        )


def begin_run(files: Files, data: Path, journal: Path) -> None:
    """Check that both folders were used last by the same run, and write the new one into them.

    Raises:
        DifferentRuns: They were not; nothing was changed.
        OSError: A folder cannot be read or created.
    """
    files.make_folders(journal)
    try:
        before = require_same_run(files, data, journal) or _NONE
    except ValueError as error:
        _LOG.warning("a file %s is damaged, so an older copy is not noticed at this start: %s", FILE_NAME, error)
        before = _NONE
    run = uuid4().hex
    try:
        files.write_atomic(journal / FILE_NAME, seal(_TITLE, [f"{before} {run}"]))
        files.write_atomic(data / FILE_NAME, seal(_TITLE, [run]))
        files.write_atomic(journal / FILE_NAME, seal(_TITLE, [run]))
    except OSError as error:  # for example a full disk: the folders still agree
        _LOG.warning("this run is not recorded in %s and %s: %s", data, journal, error)


def require_same_run(files: Files, data: Path, journal: Path) -> str | None:
    """Check that both folders were used last by the same run; return it, if it is known. ``journal`` exists.

    Raises:
        DifferentRuns: They were not.
        ValueError: A file is damaged.
        OSError: A folder cannot be read.
    """
    last, of_journal = _read(files, data), _read(files, journal)
    has_records = any(name.endswith(".journal") for name in files.listdir(journal))
    # Neither has a file before the first start of this version; a journal without records and file is a new one.
    if (has_records or of_journal) and (last or of_journal) and not _agree(last, of_journal):
        raise DifferentRuns(str(data), str(journal))
    return last[0] if last else None


def _agree(of_data: Sequence[str], of_journal: Sequence[str]) -> bool:
    return (of_data[0] if of_data else _NONE) in of_journal


def _read(files: Files, folder: Path) -> list[str]:
    """Return the runs that a folder names; none without a file."""
    path = folder / FILE_NAME
    if not files.exists(path):
        return []
    (line,) = unseal(_TITLE, files.read_bytes(path))
    return line.split(" ")
