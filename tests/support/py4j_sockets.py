"""Sockets between a driver's Python and its JVM, by a name of their own.

py4j has a connection for each thread and closes that of a thread that has ended when the collector finds it, which may
be in any later test. So does PySpark with those that bring rows (TCP before Spark 4.1). ``pyproject.toml`` leaves
``Py4jSocket`` out of the warnings about sockets that are not closed.
"""

from __future__ import annotations

import socket
from types import SimpleNamespace

from py4j import clientserver
from pyspark import util


class Py4jSocket(socket.socket):
    """A socket that py4j or PySpark has made."""


def name_sockets() -> None:
    """Have py4j and PySpark make ``Py4jSocket`` from now on, in this process."""
    clientserver.socket = util.socket = SimpleNamespace(**{**vars(socket), "socket": Py4jSocket})
