"""Membership of a group that the brokers of a list keep themselves, and the group's offsets there.

A consumer joins the group at every broker of the list. Each broker gives away its own partitions only, and stores the
offsets in them: two members never own one partition, and a list of brokers may change without any offset being lost.
Members compute the assignment from the members that all brokers know.

A thread for each broker prolongs the session there, and detects changes. While a broker is away, nothing is assigned
anew until the session at it has ended. Then its partitions are not read, and those of the other brokers are divided
among the members that all of these know; the broker's are divided again when it is back. Members may see different
brokers meanwhile: a partition is owned once, because its broker decides, and it is wanted by a member, because of two
members that each know the other both are members at the same brokers, and compute the same.

Source: docs/client-internals.md, "How a group divides partitions"; docs/protocol.md, "group";
docs/adr/0042-groups-at-brokers.md.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final, TypeVar

from metaq.backends.metaq.group_requests import (
    ConsumerIdTaken,
    GroupBody,
    LocalPartition,
    NotNow,
    StoredOffset,
    ask_group,
    keeps_groups,
    offset_rows,
)
from metaq.backends.metaq.pool import SessionPool
from metaq.client.groups.ownership.membership import topic_partitions
from metaq.client.groups.ownership.saving import PartlySaved
from metaq.client.offsets import GroupOffset
from metaq.client.sql_offsets import SqliteOffsets
from metaq.discovery.base import Away, Directory, without
from metaq.discovery.fixed import FixedDirectory
from metaq.discovery.zk_groups import GroupView
from metaq.errors import ConnectionFailed, ConsumerIdInUse, DeadlineExceeded, MetaqError, StoreFailed, TopicNotFound
from metaq.model import Address, Partition, PartitionState, TopicPartition
from metaq.net.clock import Clock

ANSWER_S: Final = 5.0
"""Longest wait for the answer of a broker."""

BEAT_S: Final = 1.0
"""Longest time in seconds between two requests to a broker: a member learns of changes after this time."""

REFRESH_S: Final = 5.0
"""Seconds between two checks for new partitions, and shortest pause before a broker is asked again that did not answer,
and where the consumer has not been a member.
"""

SLOW_S: Final = 1.0
"""Longest wait for the answer to an earlier request, before the broker is asked who owns a partition."""

SILENT_FACTOR: Final = 4
"""Pause before a silent broker is asked again, as a multiple of the time for which its answer was waited for."""

_LOG: Final = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BrokerMember:
    """Who asks. ``token`` is new for each consumer object, so that a successor with the same id is another owner."""

    group: str
    consumer_id: str
    topics: tuple[str, ...]
    session_s: float
    token: str


class _BrokerLink:
    """The membership at one broker. Thread-safe; one request at a time, so that answers are never out of order."""

    def __init__(self, address: Address, member: BrokerMember, pool: SessionPool, clock: Clock) -> None:
        self.address = address
        self._member, self._pool, self._clock = member, pool, clock
        self._asking = threading.Lock()
        self._owned: dict[LocalPartition, float] = {}  # and until when that is certain
        self._claimed: frozenset[LocalPartition] = frozenset()
        self._seen: object = None
        self._until_s = -inf
        self.away: MetaqError | None = None
        """Why the broker could not be asked the last time."""
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, on_change: Callable[[], None], on_taken: Callable[[], None]) -> None:
        """Prolong the session from now on. ``on_taken``: another consumer has this one's id."""
        name = f"metaq-group-{self._member.group}-{self.address}"
        self._thread = threading.Thread(target=self._run, args=(on_change, on_taken), name=name, daemon=True)
        self._thread.start()

    def _run(self, on_change: Callable[[], None], on_taken: Callable[[], None]) -> None:
        while not self._stopped.wait(min(BEAT_S, self._member.session_s / 5)):
            before = self._seen
            try:
                self.join()
            except ConsumerIdInUse:
                on_taken()
            except MetaqError as error:
                # one that is final is so for the thread that divides, if it gets it, too
                self.note_away(error if error.retryable else NotNow(f"broker {self.address}", str(error)))
                continue
            was_away, self.away = self.away, None
            if was_away or self._seen != before or self._owned.keys() != self._claimed:
                on_change()

    def note_away(self, error: MetaqError) -> None:
        """The broker could not be asked. The thread asks it again; log each reason once."""
        before, self.away = self.away, error
        if not self._stopped.is_set():
            _log_away(self._member.group, self.address, error, before)

    @property
    def is_waiting(self) -> bool:
        """Whether the broker is away, or a request that it has not answered yet is under way."""
        return self.away is not None or self._asking.locked()

    def require_present(self) -> None:
        """Raise the error of a broker that is away, without asking it: it may hang."""
        if self.away is not None:
            raise self.away.with_traceback(None)

    def has_ended(self) -> bool:
        """Whether the session may have ended, by the clock of this consumer."""
        return self._clock.monotonic() >= self._until_s

    def join(self) -> Mapping[str, list[str]]:
        """Join the group, or prolong the session; return the members and their topics.

        Raises:
            ConsumerIdInUse: The broker knows another consumer with this id.
        """
        me = self._member
        with self._asking:
            sent_s = self._clock.monotonic()
            body = self._ask(
                "join", consumer=me.consumer_id, session_ms=round(me.session_s * 1000), topics=list(me.topics)
            )
            self._note_owned(body.places("owned"), sent_s)
            members = body.members()
            self._seen, self._until_s = (members, body.text("generation")), sent_s + me.session_s
        return members

    def claim(self, places: Collection[LocalPartition]) -> set[LocalPartition]:
        """Own exactly ``places``, as far as they are free; return what this consumer owns now."""
        with self._asking:
            sent_s = self._clock.monotonic()
            self._owned = {place: until_s for place, until_s in self._owned.items() if place in places}
            body = self._ask("claim", partitions=list(places))
            self._note_owned(body.places("owned"), sent_s)
            self._claimed = frozenset(self._owned)
            return set(self._owned)

    def release(self, places: Collection[LocalPartition]) -> None:
        self.require_present()
        with self._asking:
            self._owned = {place: until_s for place, until_s in self._owned.items() if place not in places}
            self._claimed -= set(places)
            self._ask("release", partitions=list(places))

    def until_s(self, place: LocalPartition) -> float:
        return self._owned.get(place, -inf)

    def owned_now(self) -> set[LocalPartition]:
        if not self._asking.acquire(timeout=SLOW_S):
            raise NotNow(f"broker {self.address}", "it has not answered the last request yet")
        self._asking.release()
        self.require_present()
        self.join()
        return set(self._owned)

    def load(self, places: Collection[LocalPartition]) -> dict[LocalPartition, StoredOffset]:
        self.require_present()
        return self._ask("load", partitions=list(places)).offsets("offsets")

    def save(
        self, offsets: Mapping[LocalPartition, StoredOffset], expected: Mapping[LocalPartition, StoredOffset] | None
    ) -> dict[LocalPartition, StoredOffset]:
        """Save offsets; return the stored ones of partitions where they are not expected, or that others own."""
        self.require_present()
        compared = {} if expected is None else {"expected": offset_rows(expected)}
        return self._ask("save", offsets=offset_rows(offsets), **compared).offsets("changed")

    def _note_owned(self, places: Iterable[LocalPartition], sent_s: float) -> None:
        self._owned = dict.fromkeys(places, sent_s + self._member.session_s)

    def _ask(self, action: str, **fields: object) -> GroupBody:
        me = self._member
        try:
            with self._pool.lease(self.address) as session:
                if not keeps_groups(session):
                    raise NotNow(f"broker {self.address}", "it keeps no consumer groups")
                return ask_group(session, action, me.group, token=me.token, **fields)
        except ConsumerIdTaken:
            raise ConsumerIdInUse(me.group, me.consumer_id, str(self.address)) from None
        except (ConnectionFailed, DeadlineExceeded) as error:
            if self._thread is not None:
                self.note_away(error)  # before the next request begins
            raise

    def stop(self) -> None:
        """End the thread; return without waiting for it."""
        self._stopped.set()

    def leave(self) -> None:
        """Leave the group at once, if the broker can be asked."""
        self.stop()
        if self._thread is not None and not self.away:
            self._thread.join(2 * ANSWER_S)
        if not self.away:
            with suppress(MetaqError), self._asking:
                self._ask("leave")


class _Answering(FixedDirectory):
    """The brokers at ``addresses`` that are not in ``absent()``."""

    def __init__(self, addresses: Collection[Address], pool: SessionPool, absent: Away) -> None:
        super().__init__(list(addresses), pool, away=absent)
        self._absent = absent

    def _addresses(
        self, topics: Collection[str] | None = None, among: Collection[int | str] | None = None
    ) -> Sequence[Address]:
        return without(super()._addresses(topics, among), self._absent())

    def available_now(
        self, topics: Iterable[str] | None = None, among: Collection[int | str] | None = None
    ) -> tuple[Mapping[TopicPartition, PartitionState], dict[Address, MetaqError]]:
        absent = dict(self._absent())
        found, failed = super().available_now(topics, among)
        return found, absent | failed


class BrokerMembership:
    """The membership of ``member`` at all brokers of ``directory``. One thread at a time, beside the links' own.

    ``has_offsets``: the brokers have the group's offsets, too. All methods raise ``MetaqError``.
    """

    registry = "the brokers"
    exclusive = True
    connected = True
    refresh_s: float | None = REFRESH_S

    def __init__(
        self, directory: Directory, pool: SessionPool, member: BrokerMember, clock: Clock, *, has_offsets: bool = True
    ) -> None:
        self.group, self.consumer_id, self._has_offsets = member.group, member.consumer_id, has_offsets
        self._member, self._clock = member, clock
        self._pool = pool.hurried(ANSWER_S)
        self.directory = _Answering(directory.addresses(), self._pool, self._absent)
        """The brokers that are not away."""
        self._links: dict[int | str, _BrokerLink] = {}
        self._left_out: set[Address] = set()
        """Brokers that were left out since the last join began."""
        self._silent: dict[Address, tuple[MetaqError, float]] = {}
        """Brokers where this consumer has not been a member: why they could not be asked, and when they are again."""
        self._on_change: Callable[[], None] = lambda: None
        self._on_lost: Callable[[], None] = lambda: None
        self.registered = False

    def start(self, on_change: Callable[[], None], on_lost: Callable[[], None]) -> None:
        """Set the callbacks. ``on_lost`` is called when another consumer has this one's id."""
        self._on_change, self._on_lost = on_change, on_lost

    def register(self) -> None:
        """Join the group at all brokers that answer.

        Raises:
            ConsumerIdInUse: A broker knows another consumer with this id.
        """
        self._join()
        self.registered = True

    def _join(self) -> list[Mapping[str, list[str]]]:
        """Join at all brokers that answer; return the members that each of them knows, at least one."""
        self._left_out = set()
        brokers = self._asked(self.directory.brokers)
        for broker, link in list(self._links.items()):
            if brokers.get(int(broker), link.address if link.address in self._left_out else None) != link.address:
                self._links.pop(broker).stop()
        found: list[Mapping[str, list[str]]] = []
        failure: MetaqError | None = None
        for broker, address in brokers.items():
            link = self._links.get(broker) or _BrokerLink(address, self._member, self._pool, self._clock)
            began_s = self._clock.monotonic()
            try:
                found.append(link.join())
            except MetaqError as error:
                if not (error.retryable or self._has_restored(broker, error)):
                    raise
                self._note_away(address, error, began_s)
                failure = error
                continue
            self._silent.pop(address, None)
            if broker not in self._links:
                self._links[broker] = link
                link.start(self._on_change, self._taken)
        self._check_sessions()
        if failure is not None and not found:
            raise failure
        return found

    def _has_restored(self, broker: int, error: MetaqError) -> bool:
        """Whether a broker that was away may have this consumer's id from a former run of the program only: a broker
        that starts keeps the sessions that it had.
        """
        return isinstance(error, ConsumerIdInUse) and self.registered and broker not in self._links

    def _asked(self, ask: Callable[[], T]) -> T:
        """Return the result of ``ask``, without the brokers that turn out to be away.

        Raises:
            MetaqError: None is left, or the session at one has not ended.
        """
        while True:
            self._check_sessions()
            absent, began_s = {str(address) for address in self._absent()}, self._clock.monotonic()
            try:
                return ask()
            except (ConnectionFailed, DeadlineExceeded) as error:
                if error.address in absent:
                    self._silent.clear()  # none is left: ask all again
                    raise
                self._note_away(Address.parse(error.address), error, began_s)

    def _check_sessions(self) -> None:
        """Raise the error of a broker that is away, but where the session of this consumer has not ended: it may come
        back in time, and then no partition changes its owner.
        """
        for link in self._links.values():
            if (error := link.away) is not None and not link.has_ended():
                raise error.with_traceback(None)

    def _note_away(self, address: Address, error: MetaqError, began_s: float) -> None:
        for link in self._links.values():
            if link.address == address:
                link.note_away(error)
                return
        before, _ = self._silent.get(address, (None, 0.0))
        _log_away(self.group, address, error, before)
        now_s = self._clock.monotonic()
        self._silent[address] = error, now_s + max(REFRESH_S, SILENT_FACTOR * (now_s - began_s))

    def _absent(self) -> Mapping[Address, MetaqError]:
        """Return the brokers that are not asked now, and why."""
        now_s = self._clock.monotonic()
        silent = {address: error for address, (error, again_s) in self._silent.copy().items() if now_s < again_s}
        links = {link.address: link.away for link in list(self._links.values())}
        found = {address: error for address, error in {**silent, **links}.items() if error is not None}
        self._left_out.update(found)
        return found

    def why_away(self, broker: int | str) -> MetaqError | None:
        """Return why the partitions of ``broker`` are not found at the moment, if that is known."""
        link, absent = self._links.get(broker), self._absent()
        return absent.get(link.address) if link is not None else next(iter(absent.values()), None)

    def _taken(self) -> None:
        self.registered = False
        self._on_lost()
        self._on_change()

    def view(self) -> GroupView:
        """Return the members that all brokers know, and all partitions; without the brokers that are away.

        A member that a broker does not know uses another list, or has just come: it gets no partitions yet.
        """
        lists = self._join()
        common = set.intersection(*(set(members) for members in lists))
        members = {consumer: lists[0][consumer] for consumer in common}
        partitions = self._asked(self._partitions)
        away = frozenset(broker for broker, link in self._links.items() if link.address in self._left_out)
        return GroupView(members, partitions, away, away if self._has_offsets else frozenset())

    def _partitions(self) -> Mapping[str, list[Partition]]:
        """Return the partitions of each topic; none of one that only a broker may have that is away."""
        found: dict[str, list[Partition]] = {}
        for topic in self._member.topics:
            try:
                found |= topic_partitions(self.directory, [topic])
            except TopicNotFound:
                if not self._absent():
                    raise
                found[topic] = []
        return found

    def claim(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        """Claim ``partitions``; return the ones that this consumer owns now, none of brokers that are away."""
        wanted = self.by_broker(partitions)
        found: set[TopicPartition] = set()
        for broker, link in self._links.items():
            if link.away is not None:
                continue
            there = wanted.get(broker, {})
            try:
                owned = link.claim(list(there))
            except MetaqError as error:
                if not error.retryable:
                    raise
                _LOG.info("group %s: nothing is claimed at broker %s: %s", self.group, link.address, error)
                continue
            found |= {there[place] for place in owned if place in there}
        return found

    def owned_now(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        """Return the partitions that this consumer owns. Partitions of a broker that is away count if it has the
        offsets: the broker decides when it is asked to save. With another storage, they count until the session ends.
        """
        found: set[TopicPartition] = set()
        for broker, there in self.by_broker(partitions).items():
            try:
                owned = self.link(broker).owned_now()
            except ConsumerIdInUse:
                owned = set()
            except MetaqError as error:
                if not error.retryable:
                    raise
                owned = set(there) if self._has_offsets else self._owned_still(there)
            found |= {there[place] for place in owned if place in there}
        return found

    def _owned_still(self, there: Mapping[LocalPartition, TopicPartition]) -> set[LocalPartition]:
        now_s = self._clock.monotonic()
        return {place for place, where in there.items() if now_s < self.until_s(where)}

    def until_s(self, where: TopicPartition) -> float:
        """Until when the partition's broker certainly gives it to no other consumer."""
        link = self._links.get(where.partition.broker)
        return link.until_s(_local(where)) if link is not None and self.registered else -inf

    def release(self, partitions: Collection[TopicPartition]) -> None:
        """Release ``partitions``; there is nothing to release at a broker where this consumer is no member."""
        failure: MetaqError | None = None
        for broker, there in self.by_broker(partitions).items():
            if (link := self._links.get(broker)) is None:
                continue
            try:
                link.release(list(there))
            except MetaqError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Leave the group at all brokers that can be asked; at those that may hang last."""
        for link in self._links.values():
            link.stop()
        for link in sorted(self._links.values(), key=lambda link: link.is_waiting):
            link.leave()
        self._links.clear()
        self.registered = False
        self._pool.end()

    def link(self, broker: int | str) -> _BrokerLink:
        """Return the membership at a broker.

        Raises:
            MetaqError: It is not in the list now.
        """
        link = self._links.get(broker)
        if link is None:
            raise NotNow(f"broker {broker}", "this consumer is no member there")
        return link

    def by_broker(self, partitions: Iterable[TopicPartition]) -> dict[int | str, dict[LocalPartition, TopicPartition]]:
        """Return broker -> its ``partitions``; brokers that may hang last."""
        found: dict[int | str, dict[LocalPartition, TopicPartition]] = {}
        for where in partitions:
            found.setdefault(where.partition.broker, {})[_local(where)] = where
        return dict(sorted(found.items(), key=lambda pair: self._is_waiting(pair[0])))

    def _is_waiting(self, broker: int | str) -> bool:
        return (link := self._links.get(broker)) is None or link.is_waiting


@dataclass(slots=True)
class _Saved:
    """``changed``: the stored offsets of partitions that were not saved, because they are not as expected.
    ``failed``: the partitions of brokers that could not be asked, for the reason ``failure``.
    """

    changed: dict[TopicPartition, StoredOffset] = field(default_factory=dict)
    failed: set[TopicPartition] = field(default_factory=set)
    failure: MetaqError | None = None


class OffsetsAtBrokers:
    """The offsets of the group of ``membership``, each at its partition's broker. A ``ConditionalStorage`` and an
    ``IncarnationStorage``.

    ``local``: this machine's offsets from the time when its brokers kept no groups. They apply to partitions without an
    offset at the broker, and are stored there at once.
    """

    def __init__(self, membership: BrokerMembership, local: Callable[[], SqliteOffsets | None]) -> None:
        self._membership, self._local = membership, local
        self._moved: set[TopicPartition] = set()

    def load(self, group: str, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, GroupOffset]:
        found = self._offsets(partitions)
        if unmoved := set(partitions) - self._moved:
            missing = {where for where in unmoved if where not in found or found[where].offset is None}
            try:
                if self._take_local(group, unmoved, missing):
                    found |= self._offsets(missing)
            except (StoreFailed, OSError) as error:
                if missing:
                    raise error if isinstance(error, StoreFailed) else StoreFailed("this machine", str(error)) from None
                _LOG.warning("group %s: offsets of this machine, which are not needed, stay there: %s", group, error)
            self._moved |= unmoved
        return {where: GroupOffset.parse(stored.offset) for where, stored in found.items() if stored.offset is not None}

    def _take_local(
        self, group: str, partitions: Collection[TopicPartition], missing: Collection[TopicPartition]
    ) -> bool:
        """Store this machine's offsets in ``missing`` at the brokers; return whether there were any. Those in all
        ``partitions`` are removed from this machine: they would come back when the brokers forget the group.
        """
        local = self._local()
        if local is None:
            return False
        try:
            there, incarnations = local.load(group, partitions), local.incarnations(group, partitions)
            offsets = {where: there[where] for where in missing if where in there}
            if offsets:
                named = ", ".join(map(str, sorted(offsets)))
                _LOG.info("group %s: the offsets that this machine has stored move to the brokers: %s", group, named)
                new = {where: _stored(offset, incarnations.get(where)) for where, offset in offsets.items()}
                if (failure := self._save(new, {}).failure) is not None:
                    raise failure
            if there:
                with suppress(StoreFailed):  # tried again by the next consumer
                    local.forget(group, there)
        finally:
            local.close()
        return bool(offsets)

    def save(self, group: str, offsets: Mapping[TopicPartition, GroupOffset]) -> None:
        """Store ``offsets`` of partitions that no other consumer owns."""
        self._save_owned({where: _stored(offset) for where, offset in offsets.items()})

    def save_if_unchanged(
        self,
        group: str,
        offsets: Mapping[TopicPartition, GroupOffset],
        expected: Mapping[TopicPartition, GroupOffset | None],
    ) -> dict[TopicPartition, GroupOffset | None]:
        """Store the offsets that are unchanged, of partitions that no other consumer owns; return the stored ones of
        the others.

        Raises:
            PartlySaved: A broker could not be asked; all others were.
        """
        known = {where: _stored(offset) for where in offsets if (offset := expected.get(where)) is not None}
        saved = self._save({where: _stored(offset) for where, offset in offsets.items()}, known)
        changed = {
            where: None if stored.offset is None else GroupOffset.parse(stored.offset)
            for where, stored in saved.changed.items()
        }
        if saved.failure is not None:
            raise PartlySaved(saved.failure, saved.failed, changed)
        return changed

    def incarnations(self, group: str, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, str]:
        found = self._offsets(partitions)
        return {where: stored.incarnation for where, stored in found.items() if stored.incarnation is not None}

    def save_incarnations(
        self,
        group: str,
        offsets: Mapping[TopicPartition, GroupOffset],
        incarnations: Mapping[TopicPartition, str | None],
    ) -> None:
        """Store both, of partitions that no other consumer owns. An unknown incarnation leaves the stored one."""
        places = offsets.keys() | incarnations.keys()
        self._save_owned({where: _stored(offsets.get(where), incarnations.get(where)) for where in places})

    def close(self) -> None:
        """Do nothing: the membership closes the connections."""

    def _save_owned(self, offsets: Mapping[TopicPartition, StoredOffset]) -> None:
        saved = self._save(offsets, None)
        if saved.failure is not None:
            raise saved.failure
        if saved.changed:
            named = ", ".join(map(str, sorted(saved.changed)))
            raise NotNow(self._membership.registry, f"another consumer owns {named}")

    def _save(
        self, offsets: Mapping[TopicPartition, StoredOffset], expected: Mapping[TopicPartition, StoredOffset] | None
    ) -> _Saved:
        saved = _Saved()
        for broker, there in self._membership.by_broker(offsets).items():
            new = {place: offsets[where] for place, where in there.items()}
            known = None if expected is None else {p: expected[w] for p, w in there.items() if w in expected}
            try:
                found = self._membership.link(broker).save(new, known)
            except MetaqError as error:
                saved.failure = saved.failure or error
                saved.failed.update(there.values())
            else:
                saved.changed |= {there[place]: stored for place, stored in found.items()}
        return saved

    def _offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, StoredOffset]:
        found: dict[TopicPartition, StoredOffset] = {}
        for broker, there in self._membership.by_broker(partitions).items():
            stored: Mapping[LocalPartition, Any] = self._membership.link(broker).load(list(there))
            found |= {there[place]: offset for place, offset in stored.items()}
        return found


def _log_away(group: str, address: Address, error: MetaqError, before: MetaqError | None) -> None:
    """Log why a broker cannot be asked, unless that is as ``before``, maybe about another request."""
    if str(error) == str(before) or (error.away and type(error) is type(before)):
        return
    text = "group %s: broker %s cannot be asked: its partitions are not read, positions are kept: %s"
    _LOG.warning(text, group, address, error)


def new_token() -> str:
    """Return a new token."""
    return uuid.uuid4().hex


def _local(where: TopicPartition) -> LocalPartition:
    return where.topic, where.partition.index


def _stored(offset: GroupOffset | None, incarnation: str | None = None) -> StoredOffset:
    return StoredOffset(None if offset is None else str(offset), incarnation)
