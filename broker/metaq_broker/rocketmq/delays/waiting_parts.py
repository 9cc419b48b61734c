"""The front end's parts for waiting messages: delays, retries and transactions, with one mover and one timer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

from metaq.errors import MetaqError
from metaq_broker.clock import Clock
from metaq_broker.log.engine.topics import ServedTopic, Topics
from metaq_broker.log.state.state_table import StateTable
from metaq_broker.rocketmq.delays.delays import DelayedDelivery
from metaq_broker.rocketmq.delays.levels import DelayLevels
from metaq_broker.rocketmq.delays.recalls import RecallRequests
from metaq_broker.rocketmq.delays.waiting_messages import MakeTopic, StoreMoves
from metaq_broker.rocketmq.dispatcher import Dispatcher
from metaq_broker.rocketmq.groups.group_settings import Groups
from metaq_broker.rocketmq.groups.members import Members
from metaq_broker.rocketmq.groups.retries import Retries
from metaq_broker.rocketmq.half_messages.half_messages import AskPolicy
from metaq_broker.rocketmq.half_messages.transactions import Transactions
from metaq_broker.rocketmq.messages.message_store import MessageStore, OutgoingMessage
from metaq_broker.rocketmq.moves.mover import Mover
from metaq_broker.rocketmq.moves.rounds import Rounds
from metaq_broker.rocketmq.session import RemotingSession

MaySend = Callable[["RemotingSession", str], bool]
"""Returns whether the client that sends heartbeats on a connection may send to a topic."""


class WaitingParts:
    """``interceptors`` are for sends, in their order."""

    def __init__(
        self,
        store: MessageStore,
        state: StateTable,
        topics: Topics,
        groups: Groups,
        members: Members,
        clock: Clock,
        levels: DelayLevels | None = None,
        policy: AskPolicy | None = None,
        broker_name: str = "",
        may_run: Callable[[], bool] = lambda: True,
        may_send: MaySend = lambda _session, _topic: True,
    ) -> None:
        needed = topic_maker(topics, is_of_clients=False)  # else one that cannot be made holds up all of its level
        mover: Mover[OutgoingMessage] = Mover(StoreMoves(store, needed), state)
        self.rounds = Rounds(mover, store.steady_ms, may_run)
        self.delays = DelayedDelivery(store, mover, state, self.rounds, clock, levels, broker_name)
        self.transactions = Transactions(
            store, mover, state, self.rounds, clock, sessions_of(members, may_send), self.delays, policy
        )
        self.retries = Retries(store, self.delays, groups, topic_maker(topics))
        self.recalls = RecallRequests(store, self.delays.timed)

    @property
    def interceptors(self) -> Sequence[Any]:
        """The interceptors of sends, in order: retries, transactions, delays."""
        return self.retries, self.transactions, self.delays

    def mount(self, dispatcher: Dispatcher) -> None:
        """Register the handlers of 36, 37 and 370."""
        self.retries.mount(dispatcher)
        self.transactions.mount(dispatcher)
        self.recalls.mount(dispatcher)

    def needed_from(self, topic: str, queue: int) -> int | None:
        """Return the first queue offset of a system topic that is needed still; ``None`` for other topics."""
        waiting = self.delays.needed_from(topic, queue)
        return self.transactions.needed_from(topic, queue) if waiting is None else waiting

    def start(self) -> None:
        """Begin to deliver and to ask; on the running event loop."""
        self.rounds.start()

    def stop(self) -> None:
        self.rounds.stop()


def sessions_of(members: Members, may_send: MaySend) -> Callable[[str, str], Sequence[RemotingSession]]:
    """Return a function that returns the sessions of a producer group's members that may send to a topic.

    Any client can claim to be a producer of a group, and a check-back contains the half message.
    """

    def sessions(group: str, topic: str) -> Sequence[RemotingSession]:
        found = [cast("RemotingSession", each.connection) for each in members.producers(group)]
        return [each for each in found if may_send(each, topic)]

    return sessions


def topic_maker(topics: Topics, *, is_of_clients: bool = True) -> MakeTopic:
    """Return a function that creates a topic unless it has enough queues; see ``Topics.create``."""

    def make(topic: str, queues: int, kept: Callable[[Exception | None], None]) -> None:
        settings = topics.settings(topic)
        if settings is not None and settings.queues >= queues and topics.accepts(topic):
            kept(None)
            return
        new = ServedTopic(queues, queues) if settings is None else _wider(settings, queues)
        try:
            topics.create(topic, new, kept, is_of_clients=is_of_clients)
        except MetaqError as error:
            kept(error)

    return make


def _wider(settings: ServedTopic, queues: int) -> ServedTopic:
    """Queues that only have messages left, or get some that waited, are read and not written."""
    return replace(settings, read_queues=max(queues, settings.read_queues))
