"""Many questions to one broker as one conversation: the time of a round trip, not of one for each question."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from metaq.backends.metaq.session import OUTSTANDING_MAX, Session
from metaq.protocols.text.commands import Command, Reply

TOGETHER: Final = OUTSTANDING_MAX // 4
"""Requests that are written at once; up to twice as many are under way."""


def call_all(session: Session, commands: Sequence[Command]) -> list[Reply]:
    """The replies to ``commands``, in their order; while some are answered, the next are on their way.

    ``session`` has at least half of its ``OUTSTANDING_MAX`` requests to spare.

    Raises:
        ConnectionFailed, DeadlineExceeded, ProtocolError: The session is closed.
        ValueError: A command cannot be written, or has no reply.
    """
    opaques: list[int] = []
    replies: list[Reply] = []
    for start in range(0, len(commands), TOGETHER):
        waited_for = len(opaques)
        opaques += session.post_all(commands[start : start + TOGETHER])
        replies += map(session.wait, opaques[len(replies) : waited_for])
    return replies + [session.wait(opaque) for opaque in opaques[len(replies) :]]
