"""Memory that this process shares with a broker on its machine, so that blocks need not be sent.

It is a ``memfd`` whose size is sealed, divided into slots of one size. ``slots`` offers it to a broker.

Source: memfd_create(2), fcntl(2).
"""

from __future__ import annotations

import fcntl
import mmap
import os
from typing import Final

from metaq.wire.text.commands import Share

_MAKE: Final = getattr(os, "memfd_create", None)  # Linux has it
_ADD_SEALS: Final[int | None] = getattr(fcntl, "F_ADD_SEALS", None)


class Slot:
    """A part of shared memory; ``view`` is all of it, writable. ``position`` is where it begins in the memory."""

    __slots__ = ("memory", "position", "view")

    def __init__(self, memory: SharedMemory, position: int, view: memoryview) -> None:
        self.memory, self.position, self.view = memory, position, view

    def free(self) -> None:
        """Give it back: nobody looks at it any more."""
        self.memory.give_back(self)


class SharedMemory:
    """``count`` slots of ``slot_bytes`` each. It lasts until it is retired and the last slot that was taken is gone."""

    def __init__(self, slot_bytes: int, count: int) -> None:
        """Make it.

        Raises:
            OSError: The system does not give so much, or has no such thing.
        """
        if _MAKE is None or _ADD_SEALS is None:
            raise OSError("this system has no sealed memory files")
        self.slot_bytes, self.size = slot_bytes, slot_bytes * count
        self.fd = _MAKE("metaq-blocks", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        """Open until ``close_file``."""
        try:
            os.truncate(self.fd, self.size)
            fcntl.fcntl(self.fd, _ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            view = memoryview(mmap.mmap(self.fd, self.size))
        except OSError:
            self.close_file()
            raise
        places = range(self.size - slot_bytes, -1, -slot_bytes)
        self._count, self._retired = count, False
        self._free = [Slot(self, position, view[position : position + slot_bytes]) for position in places]

    @property
    def unused(self) -> bool:
        """Whether no slot is taken."""
        return len(self._free) == self._count

    def take(self) -> Slot | None:
        """A free slot, the one that was freed last: most likely it is in a cache still. ``None`` if none is free."""
        return self._free.pop() if self._free else None

    def give_back(self, slot: Slot) -> None:
        """Take a slot back."""
        if not self._retired:
            self._free.append(slot)

    def retire(self) -> None:
        """Give out no more slots."""
        self._retired = True
        self._free.clear()

    def offer(self, boot: str) -> Share:
        """The command that offers it; ``boot`` is what ``metaq.machine.boot_id`` says. Only while the file is open."""
        status = os.fstat(self.fd)
        return Share(os.getpid(), self.fd, self.size, status.st_dev, status.st_ino, boot, 0)

    def close_file(self) -> None:
        """Close the file: who has it mapped needs it no more."""
        os.close(self.fd)
