"""Reads a partition's bytes from the broker's files, if this process runs on the same machine and has access.

The broker is asked where the bytes are (``offset ... file``); they are then read with ``pread``, without network or
work for the broker. Readable bytes are the same as for a get: durable and undamaged. The file stays open, so its bytes
stay readable when retention deletes it.

This is only a shortcut: in any other case (another machine, a file that cannot be opened or is a different one, bytes
that are gone) the answer is "ask the broker", which reports the reason.
"""

from __future__ import annotations

import contextlib
import os
from typing import Final, NamedTuple

from metaq.backends.metaq.fetch import GROUP
from metaq.backends.metaq.session import Session
from metaq.backends.segment_files import open_segment
from metaq.errors import BrokerError
from metaq.net.machine import boot_id
from metaq.protocols.file_location import FileLocation, parse_file_location
from metaq.protocols.text.commands import GetOffset
from metaq.protocols.text.extensions import EXT_FILE

BYTES_MIN: Final = 512 << 10
"""For fewer bytes, a transfer costs less than asking for the file and opening it."""

_UNAVAILABLE: Final = 503


class _Opened(NamedTuple):
    """An open file with the bytes ``start`` to ``end`` of the partition; the first is at ``position``."""

    fd: int
    start: int
    end: int
    position: int


class LocalFile:
    """The files of one partition, one open at a time. Reopens on demand after ``close``."""

    def __init__(self, session: Session, topic: str, partition_index: int) -> None:
        self._session, self._topic, self._index = session, topic, partition_index
        self._opened: _Opened | None = None

    def read_into(self, buffer: memoryview, offset: int, wanted_bytes: int) -> int:
        """Read the partition's bytes from ``offset`` on into ``buffer``, up to the end of the file; return 0 to ask the
        broker.

        ``wanted_bytes``: how many bytes the caller needs in total; for few, no file is opened.

        Raises:
            ConnectionFailed, DeadlineExceeded, ProtocolError: The session is closed.
        """
        opened = self._opened
        if opened is None or not opened.start <= offset < opened.end:
            opened = self._open(offset) if wanted_bytes >= BYTES_MIN else None
            if opened is None:
                return 0
        count = min(len(buffer), opened.end - offset)
        try:
            return os.preadv(opened.fd, [buffer[:count]], opened.position + offset - opened.start)
        except OSError:
            return 0

    def close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            with contextlib.suppress(OSError):
                os.close(opened.fd)

    def _open(self, offset: int) -> _Opened | None:
        self.close()
        place = self._ask(offset)
        fd = None if place is None else open_segment(place, f"{self._topic}-{self._index}")
        if place is None or fd is None:
            return None
        self._opened = _Opened(fd, offset, offset + place.length, place.position)
        return self._opened

    def _ask(self, offset: int) -> FileLocation | None:
        session = self._session
        if not session.may_share_files or boot_id() is None or EXT_FILE not in session.extensions:
            return None
        question = GetOffset(self._topic, GROUP, self._index, offset, 0, "file")
        try:
            text = session.ask(question)
        except BrokerError as refusal:
            session.may_share_files = refusal.code != _UNAVAILABLE  # permanent: the broker is not on this machine
            return None
        try:
            place = parse_file_location(text)
        except ValueError as fault:
            raise session.protocol_error(f"the file of a partition: {fault}") from None
        session.may_share_files = place.boot == boot_id()
        return place if session.may_share_files else None
