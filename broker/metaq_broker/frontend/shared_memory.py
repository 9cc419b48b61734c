"""Memory of a client on this machine, in which it hands over blocks instead of sending them.

The client makes a ``memfd`` and says under which descriptor its process has it open; the broker opens that through
``/proc`` and maps it. It takes nothing but

* the very file that is meant: device, inode and this machine's boot id are compared, because in another container the
  same numbers mean another process;
* a file of the user that the broker runs as. Only such a client could change a block after it was checked, and that
  one could as well write to the segment files;
* one whose size is sealed. A mapping that is longer than its file would end the broker when it is looked at (SIGBUS).

Source: docs/protocol.md (share); memfd_create(2), fcntl(2), proc_pid_fd(5).
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import stat
from typing import Final

from metaq.machine import boot_id
from metaq.wire.text.commands import Share

SHARED_BYTES_MAX: Final = 64 << 20
"""Memory that one connection may share."""

MEMORIES_MAX: Final = 32
"""Connections that may share memory at a time: a descriptor is open for each."""

_OPEN_FLAGS: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_GET_SEALS: Final[int | None] = getattr(fcntl, "F_GET_SEALS", None)  # Linux has it
_SEALED: Final = getattr(fcntl, "F_SEAL_SHRINK", 0) | getattr(fcntl, "F_SEAL_GROW", 0)


class NotShared(Exception):
    """The memory cannot be used; the text says why."""


def can_share() -> bool:
    """Say whether this system has what sharing needs."""
    return _GET_SEALS is not None and boot_id() is not None


class SharedMemory:
    """The memory of one connection."""

    def __init__(self, mapping: mmap.mmap) -> None:
        self._mapping = mapping
        self._view = memoryview(mapping)

    @classmethod
    def of(cls, share: Share) -> SharedMemory:
        """Map what the client offers.

        Raises:
            NotShared: It is not on this machine, or not what it says, or not to be trusted.
        """
        if not can_share() or share.boot != boot_id():
            raise NotShared("it is for clients on the broker's machine")
        if not 0 < share.size <= SHARED_BYTES_MAX:
            raise NotShared(f"{share.size} bytes: 1 to {SHARED_BYTES_MAX} are allowed")
        path = f"/proc/{share.process}/fd/{share.descriptor}"
        try:
            # First: to look at a file of somebody else can take for ever, if he lets it.
            _check_owner(os.stat(f"/proc/{share.process}"), f"process {share.process}")
            _check(os.stat(path), share)  # before it is opened: opening a device can do something
            fd = os.open(path, _OPEN_FLAGS)
            try:
                _check(os.fstat(fd), share)
                _check_seals(fd)
                return cls(mmap.mmap(fd, share.size))
            finally:
                os.close(fd)
        except OSError as error:
            raise NotShared(f"descriptor {share.descriptor} of process {share.process}: {error.strerror}") from None

    def block(self, position: int, length: int) -> memoryview:
        """Return ``length`` bytes at ``position``, writable.

        Raises:
            NotShared: They are not all in it.
        """
        if length > len(self._view) or position > len(self._view) - length:
            raise NotShared(f"{length} bytes at {position} are not within the {len(self._view)} bytes that are shared")
        return self._view[position : position + length]

    def close(self) -> None:
        """Unmap it."""
        with contextlib.suppress(BufferError):  # a block is still looked at: the last to do so unmaps it
            self._view.release()
            self._mapping.close()


class SharedMemories:
    """Maps and unmaps what connections share. Not thread-safe."""

    def __init__(self, count_max: int = MEMORIES_MAX) -> None:
        self._count_max = count_max
        self.count = 0
        """How many are mapped."""

    def map(self, share: Share, before: SharedMemory | None) -> SharedMemory:
        """Map what a client offers in place of what its connection shared before. Raises as ``SharedMemory.of``."""
        if before is None and self.count == self._count_max:
            raise NotShared(f"{self._count_max} connections share memory already")
        memory = SharedMemory.of(share)
        self.count += 1
        if before is not None:
            self.unmap(before)
        return memory

    def unmap(self, memory: SharedMemory) -> None:
        """Let go of a memory."""
        memory.close()
        self.count -= 1


def _check(status: os.stat_result, share: Share) -> None:
    if (status.st_dev, status.st_ino) != (share.device, share.inode):
        raise NotShared(f"descriptor {share.descriptor} of process {share.process} is another file here")
    if not stat.S_ISREG(status.st_mode) or status.st_size != share.size:
        raise NotShared(f"it is no file of {share.size} bytes")
    _check_owner(status, "it")


def _check_owner(status: os.stat_result, what: str) -> None:
    if status.st_uid != os.geteuid():
        raise NotShared(f"{what} belongs to another user than the broker runs as")


def _check_seals(fd: int) -> None:
    assert _GET_SEALS is not None
    try:
        seals = fcntl.fcntl(fd, _GET_SEALS)
    except OSError:
        raise NotShared("it is no memfd") from None
    if seals & _SEALED != _SEALED:
        raise NotShared("its size is not sealed")
