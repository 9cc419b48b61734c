"""Pulls the queues that a consumer owns: one sending thread per broker, whatever the number of queues.

Each queue has one pull at its broker, where it waits for messages. The connection's receiving thread processes the
answers. A broker that hangs delays only its own queues.
"""

from __future__ import annotations

from functools import partial

from metaq.backends.rocketmq.names import with_namespace
from metaq.backends.rocketmq.reads.pulls import PulledQueue, PulledRecords
from metaq.backends.rocketmq.reads.waiting_pulls import Outcome, is_lasting, submit_pull
from metaq.client.groups.fetchers import FetchLog, FetchThreads
from metaq.client.groups.owned import Owned
from metaq.client.groups.state import ConsumerState
from metaq.client.rocketmq.groups.deliveries import RocketDelivery
from metaq.client.rocketmq.groups.queue import Pull, QueueAnswer
from metaq.client.rocketmq.groups.silence import SilentMasters
from metaq.client.rocketmq.groups.subscriptions import Subscriptions
from metaq.discovery.name_server import NameServerDirectory
from metaq.errors import ConnectionFailed, DeadlineExceeded, MetaqError
from metaq.model import Address
from metaq.net.clock import SYSTEM_CLOCK, Clock
from metaq.net.remoting_client import RemotingClient

_Queue = Owned[RocketDelivery, Pull, QueueAnswer]


class PullThreads(FetchThreads[Pull, QueueAnswer]):
    """The sending threads; ``close`` ends them. ``client`` is closed by its owner."""

    def __init__(
        self,
        state: ConsumerState[RocketDelivery, Pull, QueueAnswer],
        directory: NameServerDirectory,
        client: RemotingClient,
        group: str,
        subscriptions: Subscriptions,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__(state, group, clock)
        self._directory, self._client, self._subscriptions = directory, client, subscriptions
        self._silent = SilentMasters(directory.has_moved, client.disconnect, clock)

    def close(self, timeout_s: float) -> None:
        self._silent.close()
        super().close(timeout_s)

    def _fetch(self, broker: int | str) -> None:
        log = FetchLog(self._group, broker)
        while asked := self._next(broker):
            for queue, pull in asked:
                self._send(log, queue, pull)

    def _send(self, log: FetchLog, queue: _Queue, pull: Pull) -> None:
        topic, partition = pull.where
        try:
            address = self._directory.read_address(partition.broker_name, pull.broker_id, topic=topic)
            is_master = address == self._directory.brokers().get(partition.broker_name, {}).get(0)
        except MetaqError as error:
            self._failed(log, queue, pull, error, is_final=is_lasting(error))
            return
        namespace = self._directory.namespace
        pulled = PulledQueue(
            *(with_namespace(topic, namespace), partition.broker_name, partition.index),
            *(with_namespace(self._group, namespace), self._subscriptions.of(topic)),
        )
        if is_master:
            self._silent.waits(partition.broker_name, address)
        submit_pull(
            *(self._client, address, pulled, pull.offset), partial(self._ended, log, queue, pull, address, is_master)
        )

    def _ended(
        self,
        log: FetchLog,
        queue: _Queue,
        pull: Pull,
        address: Address,
        is_master: bool,
        outcome: Outcome | MetaqError,
    ) -> None:
        """Process the outcome of a pull, in the thread that gets it."""
        if isinstance(outcome, MetaqError):
            is_final = is_master and is_lasting(outcome)
            is_avoided = isinstance(outcome, ConnectionFailed | DeadlineExceeded) or is_lasting(outcome)
            if is_avoided and not (is_final or self._state.closing):
                self._directory.avoid(address)
            self._failed(log, queue, pull, outcome, is_final=is_final)
            return
        log.answered([pull.where], [outcome])
        if is_master and isinstance(outcome, PulledRecords):
            self._silent.heard(pull.where.partition.broker_name, address)
        answer = QueueAnswer(outcome, is_master)
        log.jumped(self._state.fetched([(queue, pull)], [answer], self._clock.monotonic()))

    def _failed(self, log: FetchLog, queue: _Queue, pull: Pull, error: MetaqError, *, is_final: bool) -> None:
        """A pull has failed. A slave's refusal is not final: the master is asked next."""
        if is_final:
            self._state.fail(error)
        elif not self._state.closing:
            log.failed(error, pull.where)
        self._state.fetched([(queue, pull)], [None], self._clock.monotonic())
