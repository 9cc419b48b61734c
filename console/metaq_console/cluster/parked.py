"""Dead letters of a MetaQ group: messages that consumers on this machine parked. Sent again, they are removed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice

from metaq.client.groups.parking import Parked, ParkedMessages
from metaq.client.producer import Producer
from metaq.client.records import Received
from metaq.errors import StoreFailed
from metaq_console.cluster.sends import SendOutcome, Submitted, outcomes
from metaq_console.cluster.values import DeadLetter, FoundMessage, ResendResult


class ParkedLetters:
    """The parked messages of one group."""

    def __init__(self, parked: ParkedMessages, producer: Producer) -> None:
        self._parked, self._producer = parked, producer

    def page(self, start: int, count: int) -> tuple[list[DeadLetter], int]:
        """Return up to ``count`` messages from index ``start`` on, and how many there are."""
        found = [_letter(one) for one in islice(self._parked, start, start + count)]
        return found, len(self._parked)

    def resend(self, numbers: Sequence[str], topic: str | None, within_s: float) -> list[ResendResult]:
        """Send messages to their own topic, or to ``topic``; each that was acknowledged is removed."""
        wanted = set(numbers)
        found = {str(one.number): one for one in self._parked if str(one.number) in wanted}
        present = [number for number in numbers if number in found]
        sent = outcomes([self._submission(found[number], topic) for number in present], within_s)
        settled = {number: self._settle(found[number], outcome) for number, outcome in zip(present, sent, strict=True)}
        return [settled.get(number) or _missing(number) for number in numbers]

    def _submission(self, one: Parked[Received], topic: str | None) -> Callable[[], Submitted]:
        message = one.message
        return lambda: self._producer.submit(topic or message.topic, message.data, attribute=message.attribute)

    def _settle(self, one: Parked[Received], outcome: SendOutcome) -> ResendResult:
        removed = False
        if outcome.sent is not None:
            with suppress(StoreFailed):  # it was sent: the result says so, and that it is still parked
                removed = self._parked.discard(one.number)
        return resend_result(str(one.number), outcome, removed=removed)


def resend_result(number: str, outcome: SendOutcome, *, removed: bool) -> ResendResult:
    """Return the result for a client."""
    sent = outcome.sent
    return ResendResult(
        number=number,
        ok=sent is not None,
        topic=None if sent is None else sent.topic,
        partition=None if sent is None else str(sent.partition),
        offset=None if sent is None else sent.offset,
        removed=removed,
        error=outcome.error,
    )


def _missing(number: str) -> ResendResult:
    outcome = SendOutcome(sent=None, error=f"there is no parked message {number[:80]!r}")
    return resend_result(number, outcome, removed=False)


def _letter(one: Parked[Received]) -> DeadLetter:
    message = one.message
    return DeadLetter(
        number=str(one.number),
        origin=message.topic,
        moved_ms=one.parked_ms,
        reason=one.reason,
        message=FoundMessage(
            topic=message.topic,
            partition=str(message.partition),
            offset=message.offset,
            next_offset=message.end,
            message_id=str(message.message_id),
            timestamp_ms=message.timestamp_ms,
            attribute=message.attribute,
            keys=(),
            properties=message.properties,
            attempts=None,
            data=message.data,
        ),
    )
