"""Ports for servers of tests that keep them over restarts."""

from __future__ import annotations

import random
import socket
from collections.abc import Sequence


def free_port(offsets: Sequence[int] = (0,)) -> int:
    """Return a free port such that the ports at these distances are free, too.

    It is below the range of ports for outgoing connections, so it is still free when its server starts again.

    Raises:
        RuntimeError: None is free.
    """
    chance = random.SystemRandom()  # tests of one seed run beside one another
    for _ in range(1000):
        port = chance.randrange(12_000, 32_000)
        if all(_is_free(port + offset) for offset in offsets):
            return port
    raise RuntimeError("no free ports")


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
