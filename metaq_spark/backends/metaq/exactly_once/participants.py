"""The participants of an exactly-once write: every broker in the options, or all that ZooKeeper knows.

All of them, not only brokers with messages: any broker may hold branches of an earlier attempt. Cached for a few
seconds, because Spark creates a new writer for every micro-batch.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from metaq.backends.metaq.pair_members import PairFacts, parse_pair
from metaq.backends.metaq.session import Session
from metaq.discovery.stats import AcceptedTopics, parse_broker
from metaq.discovery.survey import elected_master
from metaq.errors import NotPairMaster
from metaq.model import Address
from metaq.net.retry import Attempts
from metaq.protocols.text.extensions import (
    EXT_CONTENTS,
    EXT_DECIDE,
    EXT_DECIDED_CONTENTS,
    EXT_DECISIONS,
    EXT_PUT_BATCH,
)
from metaq_spark.backends.metaq.cluster import ROUTE_AGE_S_MAX, RetryingSessions
from metaq_spark.errors import ExactlyOnceError

Participants = dict[int, Address]
"""Broker id to address, at least one."""


class Found(NamedTuple):
    """The brokers, and the lowest of their limits on transaction timeouts, in seconds."""

    participants: Participants
    timeout_s_max: int


NEEDED: Final = (EXT_PUT_BATCH, EXT_DECIDE, EXT_DECISIONS, EXT_CONTENTS, EXT_DECIDED_CONTENTS)


class ParticipantMemory:
    """One for each process; see ``shared_participants``."""

    def __init__(self) -> None:
        self._known: dict[tuple[Address, ...], tuple[float, Found]] = {}

    def find(self, brokers: tuple[Address, ...], sessions: RetryingSessions) -> Found:
        """Return the brokers at these addresses, at most ``ROUTE_AGE_S_MAX`` old.

        Raises:
            ExactlyOnceError: A broker does not support exactly-once delivery.
            ConnectionFailed, DeadlineExceeded: One could not be asked.
            DirectoryConflict: Two addresses are the same broker.
        """
        now_s = sessions.clock.monotonic()
        since_s, found = self._known.get(brokers, (-ROUTE_AGE_S_MAX, None))
        if found is None or now_s - since_s >= ROUTE_AGE_S_MAX:
            found = _found(brokers, sessions)
            self._known[brokers] = now_s, found
        return found


class _Answer(NamedTuple):
    """What a broker says of itself."""

    address: Address
    pair: PairFacts | None
    timeout_s_max: int


def _found(brokers: tuple[Address, ...], sessions: RetryingSessions) -> Found:
    answers: dict[int, _Answer] = {}
    for named in brokers:
        with sessions.lease(_master_of(named, sessions)) as session:
            text = _stats(session, "", sessions)
            broker = parse_broker(text)
            if broker.slave:  # it accepts no messages; its master is named as well, or does not take part
                continue
            sessions.ask(session, require_extensions)
            timeout_s_max = AcceptedTopics(_stats(session, "config", sessions)).transaction_timeout_s_max
            answer = _Answer(session.address, parse_pair(text), timeout_s_max)
        answers[broker.broker_id] = elected_master(broker.broker_id, answers.get(broker.broker_id, answer), answer)
    if not answers:
        raise ExactlyOnceError("none of the brokers that the options name is a master")
    participants = {broker_id: answer.address for broker_id, answer in answers.items()}
    return Found(participants, min(answer.timeout_s_max for answer in answers.values()))


def _stats(session: Session, item: str, sessions: RetryingSessions) -> str:
    return sessions.ask(session, lambda session: session.stats([item]))[item]


def _master_of(address: Address, sessions: RetryingSessions) -> Address:
    """Return where the master of the pair of ``address`` is, or ``address`` if it is not in a pair.

    Raises:
        NotPairMaster: The pair has no master, even after retries.
    """
    attempts = Attempts(sessions.policy, sessions.clock)
    while True:
        with sessions.lease(address) as session:
            facts = parse_pair(_stats(session, "", sessions))
            if facts is None or facts.is_master:
                return session.address
        moved = sessions.pool.members.look(session.address)
        if moved != session.address:
            return moved
        attempts.pause_after(NotPairMaster(address, "stats", f"it is not the master of its pair, nor is {facts.other}"))


def require_extensions(session: Session) -> None:
    """Check that a broker can take part.

    Raises:
        ExactlyOnceError: It cannot, such as a Java broker.
    """
    missing = [word for word in NEEDED if word not in session.extensions]
    if missing:
        raise ExactlyOnceError(
            f"broker {session.address} does not offer {' and '.join(missing)}, which it needs; every broker that the "
            "options name, or ZooKeeper knows, must be a metaq-broker of this version or a later one. Others can be "
            "written to with delivery = at_least_once"
        )


_SHARED: Final = ParticipantMemory()


def shared_participants() -> ParticipantMemory:
    return _SHARED
