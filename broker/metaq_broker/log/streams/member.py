"""Who this broker is in its pair, and what it has promised: file ``pair-member`` in the data folder.

UTF-8 text, replaced atomically::

    metaq-pair-member 1
    uuid UUID                        32 hex digits, made with the file; whoever has the folder is this member
    broker ID                        its brokerId
    boots BOOT ...                   the boot that the pair's record had last, and every later one
    promised EPOCH                   it acknowledges nothing to a leader of an earlier epoch
    seen EPOCH                       the latest epoch of a leader that was recorded
    crc32 XXXXXXXX                   of all lines before, 8 hex digits

A *boot* is ``NUMBER-NONCE``: it counts the starts, and 8 random hex digits tell two starts from one copy of the folder
apart. It is durable before the member sends anything. A folder that was restored from a copy has boots that the record
does not know, or lacks boots that the record has.

A broker without ``[pair]`` renames the file to ``pair-member.left`` before it appends anything: epochs tell nothing
about bytes that were appended without one.

Source: docs/log-format.md, "A member of a pair".
"""

from __future__ import annotations

import re
import secrets
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple
from uuid import uuid4

from metaq.errors import MetaqError
from metaq_broker.log.files.files import Files
from metaq_broker.log.files.sealed_files import seal, unseal
from metaq_broker.log.streams import epochs

FILE_NAME: Final = "pair-member"
LEFT_NAME: Final = "pair-member.left"
"""The file of a member whose folder a broker without ``[pair]`` has used."""
BOOTS_MAX: Final = 1000
"""Limit on remembered boots: a member may start this many times without reaching ZooKeeper, and still become master."""

_TITLE: Final = "metaq-pair-member 1"
_WORDS: Final = ("uuid", "broker", "boots", "promised", "seen")
_UUID: Final = re.compile(r"[0-9a-f]{32}")
_BOOT: Final = re.compile(r"\d+-[0-9a-f]{8}")


class MemberRefused(MetaqError):
    """This folder cannot be a member of the pair; the text says why, and what to do."""


class MemberRecord(NamedTuple):
    """The contents of the file."""

    uuid: str
    broker_id: int
    boots: tuple[str, ...] = ()
    promised: int = 0
    seen: int = 0


def read_member(files: Files, data_path: Path) -> MemberRecord | None:
    """Return what the file says; ``None`` without one (blocking).

    Raises:
        MemberRefused: It cannot be read.
        OSError: The disk fails.
    """
    path = data_path / FILE_NAME
    if not files.exists(path):
        return None
    try:
        return _parse(unseal(_TITLE, files.read_bytes(path)))
    except ValueError as error:
        raise MemberRefused(
            f"{path}: {error}; it says who this broker is in its pair and what it has promised. Restore no copy of it: "
            "empty the data folder, and the broker joins as a new member and copies everything"
        ) from error


def _parse(lines: list[str]) -> MemberRecord:
    words = [line.partition(" ") for line in lines]
    if tuple(word for word, _, _ in words) != _WORDS:
        raise ValueError(f"expected the lines {', '.join(_WORDS)}")
    uuid, broker, boots, promised, seen = (value for _, _, value in words)
    if not _UUID.fullmatch(uuid) or not all(_BOOT.fullmatch(boot) for boot in boots.split()):
        raise ValueError("uuid: expected 32 hex digits; boots: expected NUMBER-8HEX")
    return MemberRecord(uuid, int(broker), tuple(boots.split()), int(promised), int(seen))


def leave_pair(files: Files, data_path: Path) -> bool:
    """Note durably that a broker without ``[pair]`` uses the folder; return whether it was a member's (blocking).

    Raises:
        OSError: The disk refuses.
    """
    path = data_path / FILE_NAME
    if not files.exists(path):
        return False
    files.rename(path, data_path / LEFT_NAME)
    files.fsync_dir(data_path)
    return True


class MemberFile:
    """The file of a broker that runs; made by ``start``. Every change is durable when it returns."""

    def __init__(self, files: Files, data_path: Path, record: MemberRecord) -> None:
        self._files, self._path = files, data_path / FILE_NAME
        self._lock = Lock()
        self.record = record

    @classmethod
    def start(cls, files: Files, data_path: Path, broker_id: int) -> MemberFile:
        """Read or create the file, and count this start; the folder exists and is locked (blocking).

        Raises:
            MemberRefused: It is damaged, missing from a member's folder, or of a broker with another id.
            OSError: The disk refuses.
        """
        found = read_member(files, data_path)
        if found is None:
            if files.exists(data_path / LEFT_NAME):
                raise MemberRefused(
                    f"{data_path} was a member's folder, and a broker without [pair] has used it since "
                    f"({LEFT_NAME}), so its messages may differ from the other member's. If the other member has what "
                    "you need, empty the data folder, and the broker joins as a new member and copies everything; to "
                    'keep these messages, see "Begin a pair anew" in docs/replication.md'
                )
            if _has_epochs(files, data_path):
                raise MemberRefused(
                    f"{data_path / FILE_NAME} is missing, and {epochs.FILE_NAME} says that the folder was a member of "
                    "a pair: empty the data folder, and the broker joins as a new member and copies everything"
                )
            epochs.write_epochs(files, data_path, {})  # first: a member whose epochs are missing has lost them
            found = MemberRecord(uuid4().hex, broker_id)
        if found.broker_id != broker_id:
            raise MemberRefused(
                f"data folder {data_path} is of the broker with brokerId={found.broker_id}, and server.ini says "
                f"brokerId={broker_id}: correct one of the two"
            )
        number = int(found.boots[-1].partition("-")[0]) + 1 if found.boots else 1
        boots = (*found.boots, f"{number}-{secrets.token_hex(4)}")
        file = cls(files, data_path, found)
        file._write(found._replace(boots=(boots[0], *boots[1:][-BOOTS_MAX:])))
        return file

    def promise(self, promised: int, seen: int) -> None:
        """Record both epochs, which never go back (blocking; any thread). Raises ``OSError``."""
        with self._lock:
            mine = self.record
            self._write(mine._replace(promised=max(promised, mine.promised), seen=max(seen, mine.seen)))

    def registered(self, boot: str) -> None:
        """Forget the boots before ``boot``, which the pair's record has now (blocking; any thread).

        Raises:
            OSError: The disk refuses.
        """
        with self._lock:
            boots = self.record.boots
            if boot in boots[1:]:
                self._write(self.record._replace(boots=boots[boots.index(boot) :]))

    def _write(self, record: MemberRecord) -> None:
        uuid, broker_id, boots, promised, seen = record
        values = (uuid, str(broker_id), " ".join(boots), str(promised), str(seen))
        lines = (f"{word} {value}" for word, value in zip(_WORDS, values, strict=True))
        self._files.write_atomic(self._path, seal(_TITLE, lines))
        self.record = record


def _has_epochs(files: Files, data_path: Path) -> bool:
    try:
        return bool(epochs.read_epochs(files, data_path))
    except epochs.EpochsDamaged:
        return True
