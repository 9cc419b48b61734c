"""What became of a broker's role while it ran: promoted to master, or fenced by the slave that was promoted.

File ``role_record`` in the data folder, UTF-8 text, written atomically; without it the configuration says all::

    metaq-standing 1
    promoted TIME_MS                 or: fenced TIME_MS BY; BY is the address of the promoted slave
    crc32 XXXXXXXX                   of all lines before, 8 hex digits

A promoted broker takes messages although its configuration calls it a slave. A fenced one takes none, whatever its
configuration says, unless that makes it a slave. An operator removes the file when the roles are settled.

Source: docs/replication.md, "Promotion".
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from metaq.errors import MetaqError
from metaq_broker.storage.files import Files
from metaq_broker.storage.sealed_text import seal, unseal

FILE_NAME: Final = "standing"
PROMOTED, FENCED = "promoted", "fenced"
_TITLE: Final = "metaq-standing 1"


class RoleRecord(NamedTuple):
    """``word`` is ``promoted`` or ``fenced``, since ``time_ms`` (wall clock), ``by`` whom if fenced."""

    word: str
    time_ms: int
    by: str = ""


class RoleRecordDamaged(MetaqError):
    """The file is there and cannot be read; the text says what to do."""


def read_role_record(files: Files, data_path: Path) -> RoleRecord | None:
    """Return what the data folder says, ``None`` without a file (blocking).

    Raises:
        RoleRecordDamaged: It cannot be told.
    """
    path = data_path / FILE_NAME
    if not files.exists(path):
        return None
    try:
        [line] = unseal(_TITLE, files.read_bytes(path))
        word, time_ms, *by = line.split(" ")
        if word not in (PROMOTED, FENCED):
            raise ValueError(f"it says {word!r}")
        return RoleRecord(word, int(time_ms), " ".join(by))
    except (ValueError, OSError) as error:
        text = f"{path}: {error}; it says whether this broker may be a master: find out, then remove it"
        raise RoleRecordDamaged(text) from error


def write_role_record(files: Files, data_path: Path, role_record: RoleRecord) -> None:
    """Make it the data folder's standing; durable on return (blocking; any thread).

    Raises:
        OSError: The disk refuses.
    """
    line = " ".join(filter(None, (role_record.word, str(role_record.time_ms), role_record.by)))
    files.write_atomic(data_path / FILE_NAME, seal(_TITLE, [line]))
