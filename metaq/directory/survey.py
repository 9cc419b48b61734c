"""Directories that ask brokers who they are and what they hold, whichever way the brokers were found."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

from metaq.client.pool import SessionPool
from metaq.client.session import Session
from metaq.directory.base import Directory
from metaq.directory.stats import BrokerInfo, parse_broker, parse_incarnations, parse_offsets, parse_topics
from metaq.errors import DirectoryConflict, MetaqError, ProtocolError
from metaq.model import Address, Held, OffsetRange, Partition, TopicPartition
from metaq.wire.text.commands import Stats
from metaq.wire.text.extensions import EXT_INCARNATION

_OFFSETS: Final = "offsets"
_INCARNATIONS: Final = "incarnations"
_Parsed = TypeVar("_Parsed")

Hidden = frozenset[tuple[int, str]]
"""Broker id and topic of what a broker has, but does not offer to readers (``acceptSubscribe=false``)."""

Choose = Callable[[Session], Sequence[str]]
"""Which items of ``stats`` to ask the broker of a session for."""


class SurveyedDirectory(Directory):
    """Everything about reading, for whoever knows where the brokers are. Connections are ``pool``'s."""

    def __init__(self, pool: SessionPool) -> None:
        self._pool = pool

    @abstractmethod
    def _addresses(self) -> Sequence[Address]:
        """Where to read: one address of each broker."""

    def _hidden(self) -> Hidden:
        """What is not for readers."""
        return frozenset()

    def topics(self) -> dict[str, list[Partition]]:
        found: dict[str, list[Partition]] = {}
        answers, hidden = self._survey("topics", _OFFSETS), self._hidden()
        for broker in answers:
            for topic in broker.read("topics", parse_topics):
                if (broker.info.broker_id, topic) not in hidden:
                    found.setdefault(topic, [])
        for topic, partition, _, _ in self._stored(answers):
            found.setdefault(topic, []).append(partition)
        return {topic: sorted(found[topic]) for topic in sorted(found)}

    def partitions(self, topic: str) -> dict[Partition, Address]:
        stored = self._stored(self._survey(_OFFSETS))
        found = {partition: address for name, partition, address, _ in stored if name == topic}
        return dict(sorted(found.items()))

    def ends(self, topics: Iterable[str]) -> dict[TopicPartition, OffsetRange]:
        wanted = set(topics)
        return {
            TopicPartition(topic, partition): readable
            for topic, partition, _, readable in self._stored(self._survey(_OFFSETS))
            if topic in wanted
        }

    def held(self, topics: Iterable[str] | None = None) -> dict[TopicPartition, Held]:
        """See ``Directory``; a connection's first use costs one more round trip, for the broker's extensions."""
        answers = self._survey_by(_item_of_what_is_held)
        return self._held(answers, None if topics is None else set(topics))

    def held_by_reachable(
        self, topics: Iterable[str] | None = None
    ) -> tuple[dict[TopicPartition, Held], dict[Address, MetaqError]]:
        answers: list[Answers] = []
        away: dict[Address, MetaqError] = {}
        for address in self._addresses():
            try:
                answers.append(self._ask_or_slave(address))
            except MetaqError as error:
                if not error.retryable:
                    raise
                away[address] = error
        return self._held(answers, None if topics is None else set(topics)), away

    def _ask_or_slave(self, address: Address) -> Answers:
        try:
            return ask(self._pool, address, _item_of_what_is_held)
        except MetaqError as error:
            instead = self._instead_of(address) if error.retryable else None
            if instead is None:
                raise
        return ask(self._pool, instead, _item_of_what_is_held)

    def _instead_of(self, address: Address) -> Address | None:
        """Another address of the same broker to read from, now that this one does not answer."""
        return None

    def _held(self, answers: Iterable[Answers], wanted: set[str] | None) -> dict[TopicPartition, Held]:
        hidden = self._hidden()
        return {
            TopicPartition(topic, Partition(broker.info.broker_id, index)): held
            for broker in answers
            for (topic, index), held in broker.held().items()
            if (wanted is None or topic in wanted) and (broker.info.broker_id, topic) not in hidden
        }

    def _stored(self, answers: Iterable[Answers]) -> Iterator[tuple[str, Partition, Address, OffsetRange]]:
        """What brokers that were asked for offsets have for readers."""
        hidden = self._hidden()
        for broker in answers:
            broker_id = broker.info.broker_id
            for (topic, index), readable in broker.read(_OFFSETS, parse_offsets).items():
                if (broker_id, topic) not in hidden:
                    yield topic, Partition(broker_id, index), broker.address, readable

    def _survey(self, *items: str) -> list[Answers]:
        """Ask each broker who it is and for ``items``, in one round trip each."""
        return self._survey_by(lambda _session: items)

    def _survey_by(self, choose: Choose) -> list[Answers]:
        """Like ``_survey``, with the items that ``choose`` names for each broker.

        Raises:
            DirectoryConflict: Two addresses are the same broker, or a broker and its slave.
        """
        return survey(self._pool, self._addresses(), choose)


def survey(pool: SessionPool, addresses: Iterable[Address], choose: Choose) -> list[Answers]:
    """Ask the broker at each address who it is, and for the items that ``choose`` names.

    Raises:
        DirectoryConflict: Two of them are the same broker, or a broker and its slave.
    """
    found = [ask(pool, address, choose) for address in addresses]
    seen: dict[int, Address] = {}
    for broker in found:
        if (other := seen.setdefault(broker.info.broker_id, broker.address)) != broker.address:
            raise DirectoryConflict(broker.info.broker_id, [str(other), str(broker.address)])
    return found


class Answers:
    """What one broker answered: who it is, and a text per item."""

    def __init__(self, address: Address, texts: dict[str, str]) -> None:
        self.address, self._texts = address, texts
        self.info: BrokerInfo = self.read("", parse_broker)

    def read(self, item: str, parse: Callable[[str], _Parsed]) -> _Parsed:
        """Parse the text of ``item``; a ``ProtocolError`` gets the broker's address."""
        try:
            return parse(self._texts[item])
        except ProtocolError as error:
            raise ProtocolError(error.what, error.line, self.address) from error

    def held(self) -> dict[tuple[str, int], Held]:
        """What the broker's partitions hold, from the item that ``_item_of_what_is_held`` chose."""
        if _INCARNATIONS in self._texts:
            return self.read(_INCARNATIONS, parse_incarnations)
        return {where: Held(readable, None) for where, readable in self.read(_OFFSETS, parse_offsets).items()}


def _item_of_what_is_held(session: Session) -> Sequence[str]:
    return (_INCARNATIONS,) if EXT_INCARNATION in session.extensions else (_OFFSETS,)


def ask(pool: SessionPool, address: Address, choose: Choose) -> Answers:
    """Ask one broker who it is, and for the items that ``choose`` names, in one round trip."""
    with pool.lease(address) as session:
        commands = {item: Stats(item, 0) for item in ("", *choose(session))}
        opaques = {item: session.post(command) for item, command in commands.items()}
        texts = {item: session.text_of(session.wait(opaques[item]), command) for item, command in commands.items()}
    return Answers(address, texts)
