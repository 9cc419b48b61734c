"""Sockets between a driver's Python and its JVM, by a name of their own.

py4j has a connection for each thread and closes that of a thread that has ended when the collector finds it, which may
be in any later test. ``pyproject.toml`` leaves ``Py4jSocket`` out of the warnings about sockets that are not closed.
"""

from __future__ import annotations

import socket
from types import SimpleNamespace

from py4j import clientserver


class Py4jSocket(socket.socket):
    """A socket that py4j has made."""


def name_sockets() -> None:
    """Have py4j make ``Py4jSocket`` from now on, in this process."""
    clientserver.socket = SimpleNamespace(**{**vars(socket), "socket": Py4jSocket})
