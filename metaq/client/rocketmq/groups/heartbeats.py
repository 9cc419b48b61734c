"""Tells brokers that a consumer is there, as long as it is: a heartbeat every 30 seconds, and at once on a new
connection, because a broker forgets a member whose connection has ended.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from math import inf
from typing import Final

from metaq.backends.rocketmq.group_requests import ANSWER_S, GroupRequests
from metaq.backends.rocketmq.remoting import HEARTBEAT_S
from metaq.errors import MetaqError
from metaq.model import Address
from metaq.net.clock import Clock

AGAIN_S: Final = 1.0
"""Pause after heartbeats that did not reach every broker that they had reached before."""

FORGOTTEN_S: Final = 120.0
"""How long brokers count a member that says nothing."""

_LOG: Final = logging.getLogger(__name__)


class MemberHeartbeats:
    """A thread that sends heartbeats to all ``brokers()``, also slaves; ``on_lost``: called when nobody takes them."""

    def __init__(
        self,
        requests: GroupRequests,
        brokers: Callable[[], Collection[Address]],
        on_lost: Callable[[], None],
        clock: Clock,
    ) -> None:
        self._clock = clock
        self.until_s = inf
        """Until when brokers count this consumer as a member, if they hear nothing more; before the first heartbeat
        without end."""
        self._requests, self._brokers, self._on_lost = requests, brokers, on_lost
        self._beating = threading.Lock()
        self._wake, self._stopped = threading.Event(), False
        self._said = ""
        self.reached: set[Address] = set()
        """The brokers that took the last heartbeat."""
        self._missing: set[Address] = set()
        self._thread = threading.Thread(target=self._run, name=f"metaq-heartbeat-{requests.group}", daemon=True)

    def start(self) -> None:
        """Start the thread; the first heartbeat is ``beat``'s."""
        self._thread.start()

    def soon(self) -> None:
        """Have heartbeats sent at once: a connection has ended."""
        self._wake.set()

    def beat(self) -> None:
        """Send heartbeats and wait for the answers; any thread may do so.

        Raises:
            MetaqError: No broker took one; why one of them did not.
        """
        with self._beating:
            sent_s = self._clock.monotonic()
            if sent_s >= self.until_s:  # this process was frozen: others may have read its queues
                self._on_lost()
            failures = self._requests.beat(set(self._brokers()))
            reached = {address for address, failure in failures.items() if failure is None}
            failure = next((each for each in failures.values() if each is not None), None)
            self._missing = self.reached - reached
            self.reached = reached
            if reached:
                self.until_s = sent_s + FORGOTTEN_S
            self._say(failure)
            if not reached and failure is not None:
                raise failure

    def _say(self, failure: MetaqError | None) -> None:
        text = "" if failure is None else str(failure)
        if text and text != self._said:
            group = self._requests.group
            _LOG.warning("group %s: a broker did not take a heartbeat, trying again: %s", group, text)
        self._said = text

    def close(self) -> None:
        """End the thread, and tell the brokers that the member has left."""
        self._stopped = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(2 * ANSWER_S)
        self._requests.leave(self.reached)
        self.reached = set()

    def _run(self) -> None:
        while not self._stopped:
            soon = bool(self._missing) or not self.reached
            self._wake.wait(AGAIN_S if soon else HEARTBEAT_S)
            self._wake.clear()
            if self._stopped:
                return
            was_reached = bool(self.reached)
            with suppress(MetaqError):  # it was said
                self.beat()
            if was_reached and not self.reached:
                self._on_lost()
