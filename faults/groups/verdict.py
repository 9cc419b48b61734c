"""Decides whether a group lost a message, or repeated one that was handled long before a fault. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple


class Handled(NamedTuple):
    """``member`` had handled the message ``text`` at ``ms`` since 1970."""

    ms: int
    member: str
    text: str


class Fault(NamedTuple):
    """From just before the fault began until all messages that were sent by then had been handled, and the session of
    a killed member had ended: only then does another one read its partitions.
    """

    name: str
    began_ms: int
    ended_ms: int
    is_bounded: bool
    """Whether messages that were handled a save period before it must not be repeated."""
    can_save: bool = True
    """Whether members save positions during it. If not, another fault may come before they have saved them."""


def lost(sent: Collection[str], handled: Iterable[Handled]) -> list[str]:
    seen = {one.text for one in handled}
    return [text for text in sent if text not in seen]


def repeated(handled: Sequence[Handled]) -> dict[str, list[Handled]]:
    found: dict[str, list[Handled]] = {}
    for one in sorted(handled):
        found.setdefault(one.text, []).append(one)
    return {text: times for text, times in found.items() if len(times) > 1}


def complaints(
    sent: Collection[str], handled: Sequence[Handled], faults: Sequence[Fault], allowed_ms: int
) -> Iterator[str]:
    """Yield a sentence for each violation.

    A message may be repeated if it was handled at most ``allowed_ms`` before a fault, or during it, and again during
    the fault or at most ``allowed_ms`` after it. One fault must explain both; of more repetitions, each is judged. A
    fault that begins at most ``allowed_ms`` after one without saving counts from the beginning of that one.
    """
    since_ms = {fault: _unsaved_since_ms(fault, faults, allowed_ms) for fault in faults}
    for text in lost(sent, handled):
        yield f"lost: {text}"
    for text, times in repeated(handled).items():
        if not all(
            any(_explains(fault, since, first.ms, again.ms, allowed_ms) for fault, since in since_ms.items())
            for first, again in pairwise(times)
        ):
            yield f"repeated without reason: {text}: {', '.join(f'{one.member} at {one.ms}' for one in times)}"


def _unsaved_since_ms(fault: Fault, faults: Iterable[Fault], allowed_ms: int) -> int:
    """Return since when positions may not be saved when ``fault`` begins."""
    since = fault.began_ms
    for before in sorted(faults, key=lambda one: one.began_ms, reverse=True):
        if not before.can_save and before.began_ms < since <= before.ended_ms + allowed_ms:
            since = before.began_ms
    return since - allowed_ms


def _explains(fault: Fault, since_ms: int, first_ms: int, again_ms: int, allowed_ms: int) -> bool:
    is_late = not fault.is_bounded or first_ms >= since_ms
    is_early = fault.began_ms <= again_ms <= fault.ended_ms + allowed_ms
    return is_late and first_ms <= fault.ended_ms and is_early
