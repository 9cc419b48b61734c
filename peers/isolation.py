"""Runs a command in a network namespace of its own, which has only a loopback interface (Linux).

Servers that listen on every address can be reached only by the command there. Users other than root need a kernel that
allows user namespaces; the command then runs as root of its namespace.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from peers.maven import Unavailable

_SIOCSIFFLAGS: Final = 0x8914
_IFF_UP: Final = 0x1


def isolated(command: Sequence[str]) -> list[str]:
    """Return the command line that runs ``command`` in a new namespace.

    The command calls ``raise_loopback`` before it opens a socket.

    Raises:
        Unavailable: This machine does not allow new namespaces.
    """
    unshare = ["unshare", "--net", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    if shutil.which("unshare") is None:
        raise Unavailable("a network namespace: there is no unshare (util-linux) on this machine")
    tried = subprocess.run([*unshare, "true"], capture_output=True, text=True)
    if tried.returncode:
        raise Unavailable(f"a network namespace: {tried.stderr.strip()}")
    return [*unshare, *command]


def in_one_of_its_own(command: Sequence[str]) -> list[str]:
    """Return the command line that runs ``command`` in a new namespace whose loopback interface is up.

    Raises:
        Unavailable: This machine does not allow new namespaces.
    """
    return isolated([sys.executable, "-m", "peers.isolation", *command])


def raise_loopback() -> None:
    """Bring up the loopback interface of a new namespace.

    Raises:
        OSError: The process may not do that.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))


if __name__ == "__main__":
    raise_loopback()
    os.execvp(sys.argv[1], sys.argv[1:])
