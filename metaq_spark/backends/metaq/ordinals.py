"""Counts messages by ordinals, at brokers with that extension.

A micro-batch begins where the one before it has ended, so the ordinal of its start is known. And a partition that was
cut by a limit is probably cut again, while one that was read to its end is probably read to its end again. So one round
trip suffices: it asks where the wanted number of messages ends, or how many there are up to the end; and for either,
where the last message begins, which proves the offset (``LastMessages``). A wrong guess costs one more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from metaq.backends.metaq.fetch import GROUP
from metaq.backends.metaq.session import Session, call_all
from metaq.model import TopicPartition
from metaq.protocols.text.commands import GetOffset, OffsetMode
from metaq_spark.source.backend import SkipAhead

Question = tuple[TopicPartition, OffsetMode, int]
"""A mode of ``offset``, and the number to ask with."""


class CountedEnd(NamedTuple):
    """``ordinal`` messages are before ``offset``; the last one begins at ``last``. ``cut``: there were more after."""

    offset: int
    ordinal: int
    last: int
    cut: bool


def counted_ends(
    session: Session, asked: Mapping[TopicPartition, SkipAhead], known: Mapping[TopicPartition, CountedEnd]
) -> dict[TopicPartition, tuple[CountedEnd, int]]:
    """Return the end of each skip, and how many messages are before it since the start of its span.

    ``known``: ends where spans may begin. An end is not inside its span if messages are damaged or were deleted.
    """
    new = [where for where, skip in asked.items() if where not in known or known[where].offset != skip.span.start]
    first = {where: known[where].ordinal for where in asked.keys() - new}
    cut = {where for where in first if known[where].cut}
    starts: list[Question] = [(where, "ordinal", asked[where].span.start) for where in new]
    pairs = {where: _pair(where, skip, first[where] if where in cut else None) for where, skip in asked.items()}
    said = _answers(session, [*starts, *chain.from_iterable(pairs.values())])
    first |= {question[0]: said[question] for question in starts}
    wrong = [at for at, skip in asked.items() if not _fits(said[pairs[at][0]], skip, first[at], cut=at in cut)]
    cut.symmetric_difference_update(wrong)
    pairs |= {where: _pair(where, asked[where], first[where] if where in cut else None) for where in wrong}
    said |= _answers(session, [question for where in wrong for question in pairs[where]])
    found = {}
    for where, (span, messages_max) in asked.items():
        answer, last = (said[question] for question in pairs[where])
        if where in cut:
            found[where] = CountedEnd(answer, first[where] + messages_max, last, cut=True), messages_max
        else:
            found[where] = CountedEnd(span.end, answer, last, cut=False), answer - first[where]
    return found


def _pair(where: TopicPartition, skip: SkipAhead, first: int | None) -> tuple[Question, Question]:
    """Return the questions about the end of so many messages from ordinal ``first`` on; ``None``: of the whole span."""
    if first is None:
        return (where, "ordinal", skip.span.end), (where, "boundary", skip.span.end - 1)
    behind = first + skip.messages_max
    return (where, "message", behind), (where, "message", behind - 1)


def _fits(answer: int, skip: SkipAhead, first: int, *, cut: bool) -> bool:
    """Whether the first answer of a pair shows that the guess was right."""
    return answer < skip.span.end if cut else answer - first <= skip.messages_max


def _answers(session: Session, questions: Sequence[Question]) -> dict[Question, int]:
    return dict(zip(questions, numbers(session, questions), strict=True))


def numbers(session: Session, questions: Sequence[Question]) -> list[int]:
    """Return the answers to ``questions``, in order.

    Raises:
        BrokerError: The broker refused one.
        ConnectionFailed, DeadlineExceeded, ProtocolError: The session is closed.
    """
    commands = [GetOffset(where.topic, GROUP, where.partition.index, n, 0, mode) for where, mode, n in questions]
    texts = [session.text_of(reply, c) for c, reply in zip(commands, call_all(session, commands), strict=True)]
    try:
        return [int(text) for text in texts]
    except ValueError:
        raise session.protocol_error(f"an answer to offset is no number: {texts[:3]!r}") from None
