"""Many requests to one broker for the time of one round trip."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from metaq.backends.metaq.session import OUTSTANDING_MAX, Session
from metaq.protocols.text.commands import Command, Reply

TOGETHER: Final = OUTSTANDING_MAX // 4
"""Requests that are written at once; up to twice as many are in flight."""


def call_all(session: Session, commands: Sequence[Command]) -> list[Reply]:
    """Return the replies to ``commands``, in order; the next requests are sent while earlier ones are answered.

    ``session`` must have at least half of its ``OUTSTANDING_MAX`` requests free.

    Raises:
        ConnectionFailed, DeadlineExceeded, ProtocolError: The session is closed.
        ValueError: A command cannot be encoded, or has no reply.
    """
    opaques: list[int] = []
    replies: list[Reply] = []
    for start in range(0, len(commands), TOGETHER):
        waited_for = len(opaques)
        opaques += session.post_all(commands[start : start + TOGETHER])
        replies += map(session.wait, opaques[len(replies) : waited_for])
    return replies + [session.wait(opaque) for opaque in opaques[len(replies) :]]
