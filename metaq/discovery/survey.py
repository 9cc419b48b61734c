"""The reading part of a directory: asks the brokers for their ids, topics and offsets."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from metaq.backends.metaq.pair_members import PairFacts, parse_pair
from metaq.backends.metaq.pool import SessionPool
from metaq.backends.metaq.positions import reports_incarnations
from metaq.backends.metaq.session import Session
from metaq.discovery.base import Away, Directory, nobody, without
from metaq.discovery.stats import (
    BrokerInfo,
    StatsCache,
    incarnation_of_line,
    offsets_of_line,
    parse_broker,
    parse_offsets,
    parse_topics,
)
from metaq.errors import ConnectionFailed, DirectoryConflict, MetaqError, NotPairMaster, ProtocolError
from metaq.model import Address, OffsetRange, Partition, PartitionState, TopicPartition
from metaq.net.retry import ONCE, RetryPolicy, persist

_OFFSETS: Final = "offsets"
_INCARNATIONS: Final = "incarnations"
_Parsed = TypeVar("_Parsed")
_T = TypeVar("_T")

Hidden = frozenset[tuple[int, str]]
"""(broker id, topic) of topics that a broker holds but does not offer to readers (``acceptSubscribe=false``)."""

Choose = Callable[[Session], Sequence[str]]
"""Chooses the items of ``stats`` to request on a session."""


class SurveyedDirectory(Directory):
    """A ``Directory`` for reading; subclasses supply the addresses. Connections come from ``pool``.

    ``policy``: retries of all questions but ``available_now`` and ``brokers_now``; by default there are none. ``away``:
    brokers that the other questions leave out; where none is left, its error is raised.
    """

    def __init__(self, pool: SessionPool, policy: RetryPolicy = ONCE, away: Away = nobody) -> None:
        self._pool, self._policy, self._away = pool, policy, away
        self._stats_cache = StatsCache()
        self._last_available = _Joined((), None, frozenset(), {})

    @abstractmethod
    def _addresses(
        self, topics: Collection[str] | None = None, among: Collection[int | str] | None = None
    ) -> Sequence[Address]:
        """Return one address to read from of each broker that may have some of ``topics`` (``None``: of all), without
        brokers that are known not to be ``among`` these ids.
        """

    def _hidden(self) -> Hidden:
        """Return the topics that are not offered to readers."""
        return frozenset()

    @property
    def left_out(self) -> frozenset[Address]:
        away = self._away()
        return frozenset(address for address in away if self._pool.members.current(address) in away)

    def _present(self, topics: Collection[str] | None = None) -> list[Address]:
        """Return ``_addresses`` without the servers that are away."""
        return without(self._addresses(topics), self._away())

    def topics(self, among: Collection[str] | None = None) -> dict[str, list[Partition]]:
        found: dict[str, list[Partition]] = {}
        answers, hidden = self._survey("topics", _OFFSETS, topics=among), self._hidden()
        for broker in answers:
            for topic in broker.read("topics", parse_topics):
                if (broker.info.broker_id, topic) not in hidden:
                    found.setdefault(topic, [])
        for topic, partition, _, _ in self._stored(answers):
            found.setdefault(topic, []).append(partition)
        return {topic: sorted(found[topic]) for topic in sorted(found)}

    def partitions(self, topic: str) -> dict[Partition, Address]:
        stored = self._stored(self._survey(_OFFSETS, topics=[topic]))
        found = {partition: address for name, partition, address, _ in stored if name == topic}
        return dict(sorted(found.items()))

    def ends(self, topics: Iterable[str]) -> dict[TopicPartition, OffsetRange]:
        wanted = set(topics)
        return {
            TopicPartition(topic, partition): readable
            for topic, partition, _, readable in self._stored(self._survey(_OFFSETS, topics=wanted))
            if topic in wanted
        }

    def available(self, topics: Iterable[str] | None = None) -> Mapping[TopicPartition, PartitionState]:
        """Return the state of each partition. A new connection costs one more round trip, for the broker's
        extensions.
        """
        wanted = None if topics is None else set(topics)
        return self._available(self._survey_by(_stats_item, wanted), wanted)

    def available_now(
        self, topics: Iterable[str] | None = None, among: Collection[int | str] | None = None
    ) -> tuple[Mapping[TopicPartition, PartitionState], dict[Address, MetaqError]]:
        answers: list[SurveyAnswers] = []
        away: dict[Address, MetaqError] = {}
        wanted = None if topics is None else set(topics)
        for address in self._addresses(wanted, among):
            try:
                answer = self._ask_or_slave(address)
                if all(answer.address != other.address for other in answers):
                    answers.append(answer)
            except MetaqError as error:
                if not error.retryable:
                    raise
                away[address] = error
        return self._available(answers, wanted), away

    def brokers_now(self, away: Collection[Address] = ()) -> dict[int, Address]:
        """Return broker id -> address of the brokers that answer without retries; those in ``away`` are not asked."""
        found: dict[int, Address] = {}
        for address in self._addresses():
            if address in away:
                continue
            try:
                broker = self._ask_or_slave(address)
            except MetaqError as error:
                if not error.retryable:
                    raise
                continue
            found[broker.info.broker_id] = broker.address
        return found

    def _ask_or_slave(self, address: Address) -> SurveyAnswers:
        try:
            return ask(self._pool, address, _stats_item)
        except MetaqError as error:
            instead = self._instead_of(address) if error.retryable else None
            if instead is None:
                raise
        return ask(self._pool, instead, _stats_item)

    def _instead_of(self, address: Address) -> Address | None:
        """Return another address of a broker that did not answer, ``None`` if it has none."""
        return None

    def _available(
        self, answers: Iterable[SurveyAnswers], wanted: set[str] | None
    ) -> Mapping[TopicPartition, PartitionState]:
        parts, hidden, last = (
            [broker.available(self._stats_cache) for broker in answers],
            self._hidden(),
            self._last_available,
        )
        if not last.is_of(parts, wanted, hidden):
            available = {
                where: one
                for part in parts
                for where, one in part.items()
                if (wanted is None or where.topic in wanted) and (where.partition.broker_id, where.topic) not in hidden
            }
            self._last_available = last = _Joined(parts, wanted, hidden, available)
        return last.available

    def _stored(self, answers: Iterable[SurveyAnswers]) -> Iterator[tuple[str, Partition, Address, OffsetRange]]:
        """Yield the partitions that the brokers offer to readers, from their answers to ``stats offsets``."""
        hidden = self._hidden()
        for broker in answers:
            broker_id = broker.info.broker_id
            for (topic, index), readable in broker.read(_OFFSETS, parse_offsets).items():
                if (broker_id, topic) not in hidden:
                    yield topic, Partition(broker_id, index), broker.address, readable

    def _survey(self, *items: str, topics: Collection[str] | None = None) -> list[SurveyAnswers]:
        """Ask each broker for its id and for ``items``, in one round trip each."""
        return self._survey_by(lambda _session: items, topics)

    def _survey_by(self, choose: Choose, topics: Collection[str] | None = None) -> list[SurveyAnswers]:
        """Ask each broker for its id and for the items that ``choose`` names.

        Raises:
            DirectoryConflict: Two addresses are the same broker, or a broker and its slave.
        """
        return self._persist(lambda: survey(self._pool, self._present(topics), choose))

    def _persist(self, ask: Callable[[], _T]) -> _T:
        return persist(ask, self._policy, self._pool.clock)


@dataclass(frozen=True, slots=True)
class _Joined:
    """The partitions of all brokers, and the answers that they were built from."""

    parts: Sequence[Mapping[TopicPartition, PartitionState]]
    wanted: set[str] | None
    hidden: Hidden
    available: Mapping[TopicPartition, PartitionState]

    def is_of(self, parts: Sequence[object], wanted: set[str] | None, hidden: Hidden) -> bool:
        """Return whether it was built from exactly these answers."""
        same = len(parts) == len(self.parts) and all(one is other for one, other in zip(parts, self.parts, strict=True))
        return same and wanted == self.wanted and hidden == self.hidden


def survey(pool: SessionPool, addresses: Iterable[Address], choose: Choose) -> list[SurveyAnswers]:
    """Ask the broker at each address for its id and for the items that ``choose`` names.

    Raises:
        DirectoryConflict: Two of them are the same broker, or a broker and its slave.
    """
    seen: dict[int, SurveyAnswers] = {}
    for address in addresses:
        broker = ask(pool, address, choose)
        broker_id = broker.info.broker_id
        seen[broker_id] = elected_master(broker_id, seen.get(broker_id, broker), broker)
    return list(seen.values())


class FromMaster(Protocol):
    """What one broker has answered; ``pair``: what it said of its pair, if it has one."""

    @property
    def address(self) -> Address: ...

    @property
    def pair(self) -> PairFacts | None: ...


_Answer = TypeVar("_Answer", bound=FromMaster)


def elected_master(broker_id: int, one: _Answer, other: _Answer) -> _Answer:
    """Return the answer of the later epoch: the other member was not told yet that it is not the master any more.

    Raises:
        DirectoryConflict: They are of two addresses, and not of the members of a pair.
    """
    if one.address == other.address:
        return one
    if one.pair is None or other.pair is None:
        raise DirectoryConflict(broker_id, [str(one.address), str(other.address)])
    return other if other.pair.epoch > one.pair.epoch else one


class SurveyAnswers:
    """The answers of one broker: its id, and one text per item."""

    def __init__(self, address: Address, texts: dict[str, str]) -> None:
        self.address, self._texts = address, texts
        self.info: BrokerInfo = self.read("", parse_broker)
        self.pair: PairFacts | None = self.read("", parse_pair)

    def read(self, item: str, parse: Callable[[str], _Parsed]) -> _Parsed:
        """Parse the text of ``item``. The broker's address is added to a ``ProtocolError``."""
        try:
            return parse(self._texts[item])
        except ProtocolError as error:
            raise ProtocolError(error.what, error.line, self.address) from error

    def available(self, cache: StatsCache) -> Mapping[TopicPartition, PartitionState]:
        """Return the state of the broker's partitions, from the item that ``_stats_item`` chose."""
        item, read_line = (
            (_INCARNATIONS, incarnation_of_line) if _INCARNATIONS in self._texts else (_OFFSETS, _state_of_line)
        )
        return self.read(item, lambda text: cache.read(self.address, self.info.broker_id, text, read_line))


def _state_of_line(line: str) -> tuple[tuple[str, int], PartitionState]:
    where, readable = offsets_of_line(line)
    return where, PartitionState(readable, None)


def _stats_item(session: Session) -> Sequence[str]:
    return (_INCARNATIONS,) if reports_incarnations(session) else (_OFFSETS,)


def ask(pool: SessionPool, address: Address, choose: Choose) -> SurveyAnswers:
    """Ask one broker for its id and for the items that ``choose`` names, in one round trip. The master of a pair
    answers for both members.

    The id of a broker does not change while a connection lasts, so it is asked for once per connection.

    Raises:
        NotPairMaster: The pair of ``address`` has no master that can be reached at the moment.
    """
    answers = _ask_master(pool, address, choose)
    if answers.pair is None or answers.pair.is_master:
        return answers
    other, moved = answers.pair.other, pool.members.look(answers.address)
    if moved != answers.address:
        answers = _ask_there(pool, moved, choose)
        if answers.pair is None or answers.pair.is_master:
            return answers
    raise NotPairMaster(address, "stats", f"it is not the master of its pair, nor is {other}")


def _ask_master(pool: SessionPool, address: Address, choose: Choose) -> SurveyAnswers:
    """Ask the broker at ``address``; the other member of its pair if it turns out that this one is the master."""
    try:
        return _ask_there(pool, address, choose)
    except MetaqError as error:
        moved = pool.members.current(address) if error.retryable else address
        if moved == address:
            if isinstance(error, ConnectionFailed) and pool.members.is_member(address):
                raise NotPairMaster(address, "stats", f"no master of its pair is found: {error.reason}") from error
            raise
    return _ask_there(pool, moved, choose)


def _ask_there(pool: SessionPool, address: Address, choose: Choose) -> SurveyAnswers:
    with pool.lease(address) as session:
        known = {"": session.notes[""]} if choose is _stats_item and "" in session.notes else {}
        texts = session.stats([item for item in ("", *choose(session)) if item not in known])
        if not known and "slave true" not in texts[""]:  # a slave may be promoted while the connection lasts
            session.notes[""] = texts[""]
    return SurveyAnswers(session.address, known | texts)
