"""The control socket's file: ``control.sock`` in the data folder, for its owner alone.

Linux accepts at most 107 bytes as the path of a Unix socket, macOS 103. Longer data folders are reached
through a descriptor of the folder, which has a short path in ``/proc``.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

SOCKET_NAME: Final = "control.sock"
PATH_BYTES_MAX: Final = 103 if sys.platform == "darwin" else 107
MODE: Final = 0o600
_DESCRIPTORS: Final = "/proc/self/fd"


def listen_at(directory: Path) -> socket.socket:
    """Return a socket bound to ``directory/control.sock``, mode 0600; no client can connect before it listens.

    A socket that a dead broker left is replaced: the caller holds the folder's lock, so no other broker runs there.

    Raises:
        OSError: The file cannot be created, or something else than a socket has its name.
    """
    path = directory / SOCKET_NAME
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise FileExistsError(f"{path} is not a socket; remove it")
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(OSError):  # macOS: EINVAL
            os.fchmod(listener.fileno(), MODE)  # Linux creates the file with this mode ...
        with _short(path) as address:
            listener.bind(address)
        os.chmod(path, MODE)  # ... elsewhere it gets the mode before a client can connect
    except OSError:
        listener.close()
        raise
    return listener


def connect_to(directory: Path, timeout_s: float) -> socket.socket:
    """Return a connection to the broker of ``directory``.

    Raises:
        OSError: There is no listener, or this user may not connect.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout_s)
        with _short(directory / SOCKET_NAME) as address:
            connection.connect(address)
    except OSError:
        connection.close()
        raise
    return connection


def remove_socket(directory: Path) -> None:
    """Remove the file, if it exists."""
    with contextlib.suppress(OSError):
        os.unlink(directory / SOCKET_NAME)


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """Yield a path of the same file that is short enough for the kernel."""
    if len(os.fsencode(path)) <= PATH_BYTES_MAX:
        yield str(path)
        return
    if not os.path.isdir(_DESCRIPTORS):
        raise OSError(f"{path} is longer than the {PATH_BYTES_MAX} bytes that a socket's path may have")
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"{_DESCRIPTORS}/{folder}/{path.name}"
    finally:
        os.close(folder)
