"""Syncs of files that the kernel runs by itself, without a thread of this process: Linux's asynchronous I/O.

A sync is submitted with one system call, which returns at once. When syncs have ended, an event descriptor becomes
ready, which an event loop can watch. What a sync promises is what ``fdatasync`` promises: it is the same in the kernel.

It is used on machines of which the numbers of the system calls are known, where the kernel offers it (containers may
not). Whoever submits is notified when a sync is not taken, and runs it in another way.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Callable
from typing import Final

PENDING_MAX: Final = 128
"""Syncs that may be under way at a time."""

_NUMBERS: Final = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}
"""System calls by machine: io_setup, io_destroy, io_getevents, io_submit."""

_CONTROL: Final = struct.Struct("<QIIHhIQQqQII")
"""``struct iocb``: data, key, flags, operation, priority, file, buffer, bytes, offset, reserved, flags, eventfd."""

_EVENT: Final = struct.Struct("<QQqq")
"""``struct io_event``: data, control block, result, second result."""

_Call = Callable[..., int]

_FDSYNC: Final = 3
_SIGNALS_EVENTFD: Final = 1


class KernelSyncs:
    """Made with ``open``. Used on one thread."""

    def __init__(self, call: _Call, numbers: tuple[int, int, int, int], context: ctypes.c_ulong, events: int) -> None:
        _, self._destroy, self._get, self._submit = (ctypes.c_long(number) for number in numbers)
        self._call = call
        self._context, self._events = context, events
        self._control = ctypes.create_string_buffer(_CONTROL.size)
        self._controls = (ctypes.c_void_p * 1)(ctypes.addressof(self._control))
        self._ended = ctypes.create_string_buffer(_EVENT.size * PENDING_MAX)
        self._is_refused = False
        self._pending = 0

    @classmethod
    def open(cls) -> KernelSyncs | None:
        """Return a queue of syncs, ``None`` where the system has none for this process."""
        numbers = _NUMBERS.get(platform.machine())
        if sys.platform != "linux" or sys.byteorder != "little" or sys.maxsize < 1 << 32 or numbers is None:
            return None
        context = ctypes.c_ulong(0)
        try:
            call = ctypes.CDLL(None, use_errno=True).syscall
            call.restype = ctypes.c_long
            if call(ctypes.c_long(numbers[0]), ctypes.c_ulong(PENDING_MAX), ctypes.byref(context)):
                return None
            return cls(call, numbers, context, os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        except (OSError, AttributeError):
            return None

    def fileno(self) -> int:
        """Return what is ready to be read when syncs have ended."""
        return self._events

    def submit(self, descriptor: int, token: int) -> bool:
        """Begin a sync of an open file; ``take`` returns ``token`` when it has ended. Say whether it was begun."""
        if self._is_refused or self._pending >= PENDING_MAX:
            return False
        _CONTROL.pack_into(
            self._control, 0, token, 0, 0, _FDSYNC, 0, descriptor, 0, 0, 0, 0, _SIGNALS_EVENTFD, self._events
        )
        if self._call(self._submit, self._context, ctypes.c_long(1), self._controls) != 1:
            self._is_refused = ctypes.get_errno() != errno.EAGAIN  # the kernel, or this file system, has no such syncs
            return False
        self._pending += 1
        return True

    def take(self) -> list[tuple[int, int]]:
        """Return those that have ended: token, and the number of the error that it failed with, 0 if it did not."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._events)
        none, most = ctypes.c_long(0), ctypes.c_long(PENDING_MAX)
        count = self._call(self._get, self._context, none, most, self._ended, None)
        if count <= 0:
            return []
        self._pending -= count
        ended = memoryview(self._ended)[: count * _EVENT.size]
        return [(token, max(0, -result)) for token, _, result, _ in _EVENT.iter_unpack(ended)]

    def close(self) -> None:
        """Give everything back; waits for syncs that are under way."""
        if self._events >= 0:
            self._call(self._destroy, self._context)
            os.close(self._events)
            self._events, self._is_refused = -1, True
