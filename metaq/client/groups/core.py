"""Rules for delivered messages, shared by the sync and the asyncio consumers of both systems."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Generic, Protocol

from metaq.client.groups.deliveries import D, D_contra, HandedOut
from metaq.client.groups.options import GroupOptions
from metaq.client.groups.ownership.coordinator import MemberCoordinator
from metaq.client.groups.state import ConsumerState
from metaq.errors import MetaqError, PartitionLost, SendFailed
from metaq.model import TopicPartition
from metaq.net.clock import Clock

_LOG: Final = logging.getLogger(__name__)


class Verdict(Enum):
    """What happens to a message that a handler refused."""

    AGAIN = "again"
    REJECT = "reject"
    LOST = "lost"


class ParkedSink(Protocol[D_contra]):
    def park(self, message: D_contra, reason: str) -> None: ...


class Fetching(Protocol):
    """Threads that fetch the messages of a consumer."""

    def close(self, timeout_s: float) -> None:
        """Wait until the threads have ended, at most ``timeout_s``. ``state.closing`` must be set."""


@dataclass(frozen=True, slots=True)
class Parts(Generic[D]):
    consumer_id: str
    state: ConsumerState[D, Any, Any]
    coordinator: MemberCoordinator
    parking: ParkedSink[D]
    clock: Clock


class ConsumerCore(ABC, Generic[D]):
    """One consumer of a group, without the part that waits for messages. Opens nothing before ``start``."""

    def __init__(self, options: GroupOptions[D], parts: Parts[D]) -> None:
        self.options, self.group = options, options.group
        self.consumer_id, self.state, self.coordinator = parts.consumer_id, parts.state, parts.coordinator
        self.clock, self._parking = parts.clock, parts.parking

    def acknowledge(self, delivery: D) -> None:
        """Settle a message. If its partition is lost, the message is delivered again, here or elsewhere."""
        with suppress(PartitionLost):
            self.state.acknowledge(delivery)

    def refused(self, delivery: D) -> Verdict:
        """A handler raised: schedule the message again, unless that was its last attempt."""
        if delivery.attempt >= self.options.max_attempts:
            return Verdict.REJECT
        return Verdict.AGAIN if self.state.schedule_retry(delivery, self.clock.monotonic()) else Verdict.LOST

    def is_exhausted(self, delivery: D) -> bool:
        """Whether a message was rolled back too often to be delivered again."""
        return delivery.attempt > self.options.max_attempts

    def reject(self, delivery: D, error: BaseException | None) -> bool:
        """Apply ``on_reject`` to a message; return whether that succeeded, else the message is delivered again.

        Raises:
            StoreFailed: It cannot be parked.
            MetaqError: It cannot be sent, and a retry does not help.
        """
        reason = f"{type(error).__name__}: {error}" if error is not None else "rolled back too often"
        if self.options.sends_away:
            try:
                self._send_away(delivery)
            except MetaqError as failure:
                if not (failure.retryable or isinstance(failure, SendFailed)):
                    raise
                _LOG.warning(
                    "group %s: %s could not be sent to the reject topic, trying again: %s",
                    self.group,
                    _named(delivery),
                    failure,
                )
                self.state.schedule_retry(delivery, self.clock.monotonic())
                return False
        attempts = self.options.max_attempts
        _LOG.warning("group %s: %s is rejected after %d attempts: %s", self.group, _named(delivery), attempts, reason)
        try:
            match self.options.on_reject:
                case "park":
                    self._parking.park(delivery, reason)
                case str():
                    pass
                case function:
                    function(delivery, error)
        except BaseException:  # it is delivered again if the program continues
            self.state.schedule_retry(delivery, self.clock.monotonic())
            raise
        return True

    @abstractmethod
    def fetching(self) -> Fetching:
        """Fetch from now on for partitions that this consumer will own. Called once, before it joins the group."""

    @abstractmethod
    def _send_away(self, delivery: D) -> None:
        """Send a rejected message where the options say. Raises ``MetaqError`` if it was not stored."""

    @abstractmethod
    def _ends(self) -> Mapping[TopicPartition, tuple[int, int]]:
        """Return the stored range of each partition, ``(first offset, end)``; asks the brokers."""

    def parked_due(self) -> bool:
        """Whether it is time to look for a parked message to handle again."""
        return False

    def take_parked(self) -> list[tuple[int, D]]:
        """Return number and message of a parked message that has waited long enough, if there is one."""
        return []

    def discard_parked(self, number: int) -> None:
        """Remove a parked message that was handled."""

    def keep_parked(self, delivery: D, error: BaseException) -> None:
        """Note that a parked message failed again; it stays."""
        _LOG.warning("group %s: %s stays parked: %s: %s", self.group, _named(delivery), type(error).__name__, error)

    def positions(self) -> dict[TopicPartition, int]:
        """Return the position of each partition: everything before it is settled."""
        return {where: position.offset for where, position in self.state.positions().items()}

    def lag(self) -> dict[TopicPartition, int]:
        """Return the lag of each partition; asks the brokers."""
        positions, ends = self.positions(), self._ends()
        return {
            where: max(0, ends[where][1] - max(offset, ends[where][0])) if where in ends else 0
            for where, offset in positions.items()
        }

    def changes(self) -> list[tuple[Callable[..., object], tuple[TopicPartition, ...]]]:
        """Return the due calls of the program's callbacks. The caller has the lock and then calls ``changes_done``."""
        functions = {"assigned": self.options.on_assigned, "revoked": self.options.on_revoked}
        found = [
            (function, change.partitions)
            for change in self.state.changes
            if (function := functions[change.kind]) is not None
        ]
        self.state.changes.clear()
        self.state.callbacks_running += 1
        return found

    def changes_done(self) -> None:
        """The callbacks have returned."""
        with self.state.lock:
            self.state.callbacks_running -= 1
            self.state.notify()


def _named(delivery: HandedOut) -> str:
    return f"{delivery.where} offset {delivery.offset}"
