"""Pulls what a consumer owns: one thread for each broker sends, however many queues it has.

Each queue has one pull at its broker, which waits there for messages. Answers are taken in by the thread that receives
on the connection. A broker that hangs delays nobody else's queues.
"""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial
from typing import Final

from metaq.backends.rocketmq.answers import Answers
from metaq.backends.rocketmq.errors import AccessDenied, RequestRefused
from metaq.backends.rocketmq.names import with_namespace
from metaq.backends.rocketmq.pulls import PulledQueue, read_outcome
from metaq.client.groups.fetchers import FetchLog, FetchThreads
from metaq.client.groups.owned import Owned
from metaq.client.groups.state import GroupState
from metaq.client.rocketmq.groups.deliveries import RocketDelivery
from metaq.client.rocketmq.groups.queue import Pull, QueueAnswer
from metaq.client.rocketmq.groups.subscriptions import Subscriptions
from metaq.discovery.name_server import NameServerDirectory
from metaq.errors import ConnectionFailed, DeadlineExceeded, MetaqError
from metaq.model import Address
from metaq.net.clock import SYSTEM_CLOCK, Clock
from metaq.net.remoting_client import RemotingClient
from metaq.protocols.remoting.codes import ResponseCode
from metaq.protocols.remoting.command import RemotingCommand

SUSPEND_S: Final = 15.0
"""How long a pull waits at its broker, as those of Java's push consumer do."""
ANSWER_S: Final = SUSPEND_S + 15.0
"""How long its answer is waited for: brokers look for pulls that have waited long enough every few seconds."""
MESSAGES_MAX: Final = 256
"""What a pull asks for. Brokers give 32, unless they are configured otherwise."""

_FATAL: Final = (ResponseCode.SUBSCRIPTION_PARSE_FAILED, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)

_Queue = Owned[RocketDelivery, Pull, QueueAnswer]


class PullThreads(FetchThreads[Pull, QueueAnswer]):
    """The threads; ``close`` ends them. ``client`` is closed by its owner."""

    def __init__(
        self,
        state: GroupState[RocketDelivery, Pull, QueueAnswer],
        directory: NameServerDirectory,
        client: RemotingClient,
        group: str,
        subscriptions: Subscriptions,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__(state, group, clock)
        self._directory, self._client, self._subscriptions = directory, client, subscriptions

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
            self._failed(log, queue, pull, error)
            return
        namespace = self._directory.namespace
        pulled = PulledQueue(
            *(with_namespace(topic, namespace), partition.broker_name, partition.index),
            *(with_namespace(self._group, namespace), self._subscriptions.of(topic)),
        )
        command = pulled.pull(pull.offset, MESSAGES_MAX, int(SUSPEND_S * 1000))
        future = self._client.submit(address, command, ANSWER_S)
        future.add_done_callback(partial(self._ended, log, queue, pull, address, command, is_master))

    def _ended(
        self,
        log: FetchLog,
        queue: _Queue,
        pull: Pull,
        address: Address,
        command: RemotingCommand,
        is_master: bool,
        future: Future[RemotingCommand],
    ) -> None:
        """Take what came of a pull, in whatever thread knows it first."""
        try:
            outcome = read_outcome(Answers(address), command, future.result())
        except (ConnectionFailed, DeadlineExceeded) as error:
            if not self._state.closing:
                self._directory.avoid(address)
            self._failed(log, queue, pull, error)
        except MetaqError as error:
            self._failed(log, queue, pull, error)
        except Exception as error:  # the reader raises it
            self._state.fail(error)
        else:
            log.answered([outcome])
            answer = QueueAnswer(outcome, is_master)
            log.jumped(self._state.fetched([(queue, pull)], [answer], self._clock.monotonic()))

    def _failed(self, log: FetchLog, queue: _Queue, pull: Pull, error: MetaqError) -> None:
        if isinstance(error, AccessDenied) or (isinstance(error, RequestRefused) and error.code in _FATAL):
            self._state.fail(error)
        elif not self._state.closing:
            log.failed(str(error))
        self._state.fetched([(queue, pull)], [None], self._clock.monotonic())
