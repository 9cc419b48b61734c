"""Why a broker, or a name server, could not start."""

from __future__ import annotations

import errno

from metaq.errors import MetaqError


class StartFailed(MetaqError):
    """The broker did not start; the text is one sentence for the operator."""


def listen_fault(
    host: str, port: int, error: OSError, *, use: str = "", instead: str = "choose another one (0 = any free port)"
) -> str:
    """Return why a port cannot be bound; ``use`` says what for, ``instead`` what to do if another program has it."""
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host}{use} is taken by another program; {instead}"
    return f"cannot listen on {host} port {port}: {error.strerror or error}"
