"""The members of consumer and producer groups, from their heartbeats.

A client is a connection and an id that it chose. It is a member from its first heartbeat until it leaves, its
connection ends, or it is silent for two minutes. Several connections may have the same id, as after a reconnection; the
group lists the id once.

Listeners are notified when the members of a consumer group or their subscriptions change. Nothing is durable: after a
restart the clients' heartbeats restore everything.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from sys import intern
from typing import Final

from metaq_broker.rocketmq.groups.limits import DEFAULT_LIMITS, GroupLimitReached, GroupLimits, check_group, check_name

EXPIRY_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class GroupSubscription:
    """A group's filter of a topic; ``version`` grows with each change. The texts are the protocol's."""

    topic: str
    expression: str = "*"
    kind: str = "TAG"
    version: int = 0
    tags: tuple[str, ...] = ()
    tag_hashes: tuple[int, ...] = ()

    @property
    def length(self) -> int:
        """The size of its expression and its tags, which are in a usual expression."""
        tags = sum(map(len, self.tags)) + len(self.tags)
        return max(len(self.topic) + len(self.kind), len(self.expression), tags, len(self.tag_hashes))

    @property
    def size(self) -> int:
        """Bytes that it takes, about."""
        texts = self.topic, self.expression, self.kind, *self.tags
        return sum(map(len, texts)) + 8 * (len(self.tags) + len(self.tag_hashes))


@dataclass(frozen=True, slots=True)
class ClientIdentity:
    """A client's identity. ``connection`` is unique; the address is for display."""

    connection: Hashable
    client_id: str
    address: str = ""
    language: str = ""
    version: int = 0


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    """One group of a heartbeat; the kinds are the protocol's words."""

    name: str
    subscriptions: tuple[GroupSubscription, ...] = ()
    consume_type: str = ""
    message_model: str = ""
    consume_from: str = ""


@dataclass(slots=True, eq=False)
class _Member:
    identity: ClientIdentity
    seen: float


@dataclass(slots=True, eq=False)
class _Consumers:
    """One consumer group: its members by connection, its subscriptions, its newest kinds."""

    members: dict[Hashable, _Member] = field(default_factory=dict)
    subscriptions: dict[str, GroupSubscription] = field(default_factory=dict)
    last: ConsumerGroup = field(default_factory=lambda: ConsumerGroup(""))

    @property
    def size(self) -> int:
        return sum(each.size for each in self.subscriptions.values())


@dataclass(slots=True, eq=False)
class _Producers:
    members: dict[Hashable, _Member] = field(default_factory=dict)


Names = tuple[str, ...]
"""Groups of one client, one string for each name: there may be very many clients, each in one group or two."""

_NO_NAMES: Final[tuple[Names, Names]] = (), ()

ALIKE_MAX: Final = 4096
"""Sets of groups that are kept once for all clients that have them."""

OnChange = Callable[[str, tuple[Hashable, ...]], None]
"""Called with a consumer group that has changed, and the connections of its members."""


class Members:
    """The members of all groups. ``monotonic`` returns seconds of a clock that is never set."""

    def __init__(self, monotonic: Callable[[], float], limits: GroupLimits = DEFAULT_LIMITS) -> None:
        self._monotonic = monotonic
        self._limits = limits
        self._consumers: dict[str, _Consumers] = {}
        self._producers: dict[str, _Producers] = {}
        self._of_connection: dict[Hashable, tuple[Names, Names]] = {}
        self._producing: dict[str, dict[Hashable, int]] = {}  # client id -> connection -> groups
        self._alike: dict[tuple[Names, Names], tuple[Names, Names]] = {}
        self._count = self._expression_bytes = 0
        self._listeners: list[OnChange] = []

    def when_changed(self, listener: OnChange) -> None:
        """Call ``listener`` whenever a consumer group changes, before the call that changes it returns."""
        self._listeners.append(listener)

    # ---- heartbeats

    def check(self, identity: ClientIdentity, consumers: Iterable[ConsumerGroup], producers: Iterable[str]) -> None:
        """Check a heartbeat against the limits, before any of it is applied.

        Raises:
            GroupLimitReached, NameRefused: It exceeds them."""
        limits, new = self._limits, 0
        consuming, producing = self._of_connection.get(identity.connection, _NO_NAMES)
        for group in consumers:
            new += group.name not in consuming
            self._check_group(group)
        new += sum(name not in producing for name in producers)
        names = [each.name for each in consumers], list(producers)
        for known, named in zip((consuming, producing), names, strict=True):
            if len({*known, *named}) > limits.groups_of_client_max:
                raise GroupLimitReached("groups of one client", limits.groups_of_client_max)
        for name in names[0]:
            check_group(name)
        for name in names[1]:
            check_name(name)
        if self._count + new > limits.members_max:
            raise GroupLimitReached("members of groups", limits.members_max)
        check_name(identity.client_id)

    def _check_group(self, group: ConsumerGroup) -> None:
        limits = self._limits
        if len(group.subscriptions) > limits.subscriptions_of_group_max:
            raise GroupLimitReached("subscriptions of a group", limits.subscriptions_of_group_max)
        if max((each.length for each in group.subscriptions), default=0) > limits.expression_bytes_max:
            raise GroupLimitReached("bytes in a subscription", limits.expression_bytes_max)
        known = self._consumers.get(group.name)
        others = self._expression_bytes - (0 if known is None else known.size)
        if others + sum(each.size for each in group.subscriptions) > limits.expressions_bytes_max:
            raise GroupLimitReached("bytes in subscriptions", limits.expressions_bytes_max)

    def consumer_seen(self, identity: ClientIdentity, group: ConsumerGroup, *, notify: bool = True) -> bool:
        """Apply a heartbeat's consumer group; return whether the group has changed.

        A subscription with an older version than the known one is ignored. Without ``notify`` no listener is called.
        """
        entry = self._consumers.setdefault(group.name, _Consumers())
        changed = self._seen(entry.members, identity)
        self._in_group(identity.connection, 0, group.name)
        self._expression_bytes -= entry.size
        entry.last = replace(group, subscriptions=())  # the current ones are stored, and counted, beside it
        changed |= _subscribe(entry.subscriptions, group.subscriptions)
        self._expression_bytes += entry.size
        if changed and notify:
            self._changed(group.name)
        return changed

    def touch_consumer(self, identity: ClientIdentity, group: str) -> bool:
        """Record that a member is alive; return whether it is a member."""
        entry = self._consumers.get(group)
        if entry is None or identity.connection not in entry.members:
            return False
        self._seen(entry.members, identity)
        return True

    def producer_seen(self, identity: ClientIdentity, group: str) -> None:
        members = self._producers.setdefault(group, _Producers()).members
        if (known := members.get(identity.connection)) is not None:
            self._produces_less(known.identity)
        self._seen(members, identity)
        connections = self._producing.setdefault(identity.client_id, {})
        connections[identity.connection] = connections.get(identity.connection, 0) + 1
        self._in_group(identity.connection, 1, group)

    def consumer_left(self, connection: Hashable, group: str, *, notify: bool = True) -> None:
        """Remove a client from a consumer group; the others are notified even if it was not a member."""
        self._remove_consumer(connection, group)
        if notify and group in self._consumers:
            self._changed(group)

    def producer_left(self, connection: Hashable, group: str) -> None:
        """Remove a client from a producer group."""
        entry = self._producers.get(group)
        if entry is not None and (left := entry.members.pop(connection, None)) is not None:
            self._count -= 1
            self._produces_less(left.identity)
            self._forget_group(connection, 1, group)
            if not entry.members:
                del self._producers[group]

    def connection_lost(self, connection: Hashable) -> None:
        """Remove a client from all its groups."""
        consuming, producing = self._of_connection.get(connection, _NO_NAMES)
        for group in list(producing):
            self.producer_left(connection, group)
        for group in list(consuming):
            self._remove_consumer(connection, group)
            if group in self._consumers:
                self._changed(group)

    def expire(self) -> None:
        """Remove clients that were silent for too long. Call this periodically."""
        limit = self._monotonic() - EXPIRY_S
        for group, consumers in list(self._consumers.items()):
            for connection in _silent(consumers.members, limit):
                self._remove_consumer(connection, group)
                if group in self._consumers:
                    self._changed(group)
        for group, producers in list(self._producers.items()):
            for connection in _silent(producers.members, limit):
                self.producer_left(connection, group)

    # ---- queries

    def client_ids(self, group: str) -> list[str]:
        """Return the ids of a consumer group's members, each once, in the order of joining."""
        entry = self._consumers.get(group)
        return [] if entry is None else list(dict.fromkeys(each.identity.client_id for each in entry.members.values()))

    def is_member(self, group: str, client_id: str) -> bool:
        """Return whether a client with this id is in a consumer group, on any connection."""
        entry = self._consumers.get(group)
        return entry is not None and any(each.identity.client_id == client_id for each in entry.members.values())

    def consumers(self, group: str) -> list[ClientIdentity]:
        entry = self._consumers.get(group)
        return [] if entry is None else [member.identity for member in entry.members.values()]

    def producers(self, group: str) -> list[ClientIdentity]:
        entry = self._producers.get(group)
        return [] if entry is None else [member.identity for member in entry.members.values()]

    def producer_of(self, client_id: str) -> Hashable | None:
        """Return the newest connection of the producers with a client id, ``None`` without any."""
        return next(reversed(self._producing.get(client_id, {})), None)

    def producer_groups(self) -> Iterator[str]:
        return iter(list(self._producers))

    def producers_seen(self, group: str) -> list[tuple[ClientIdentity, float]]:
        """Return the members of a producer group, each with the seconds since its last heartbeat."""
        entry, now = self._producers.get(group), self._monotonic()
        return [] if entry is None else [(each.identity, now - each.seen) for each in entry.members.values()]

    def consumer_group(self, group: str) -> ConsumerGroup | None:
        """Return the group of the newest heartbeat, with all its subscriptions; ``None`` without members."""
        entry = self._consumers.get(group)
        if entry is None:
            return None
        last, subscriptions = entry.last, tuple(entry.subscriptions.values())
        return ConsumerGroup(group, subscriptions, last.consume_type, last.message_model, last.consume_from)

    def subscriptions(self, group: str) -> Mapping[str, GroupSubscription] | None:
        """Return topic -> a consumer group's filter; ``None`` if the group has no members."""
        entry = self._consumers.get(group)
        return None if entry is None else entry.subscriptions

    def groups(self) -> Iterator[str]:
        return iter(list(self._consumers))

    def groups_subscribed_to(self, topic: str) -> list[str]:
        """Return the consumer groups with members that want something of a topic."""
        return sorted(group for group, entry in self._consumers.items() if topic in entry.subscriptions)

    @property
    def count(self) -> int:
        """Number of members, each counted once for each of its groups."""
        return self._count

    # ---- inside

    def _seen(self, members: dict[Hashable, _Member], identity: ClientIdentity) -> bool:
        member = members.get(identity.connection)
        if member is None:
            members[identity.connection] = _Member(identity, self._monotonic())
            self._count += 1
            return True
        changed = member.identity.client_id != identity.client_id
        member.identity, member.seen = identity, self._monotonic()
        return changed

    def _produces_less(self, identity: ClientIdentity) -> None:
        """Count one group less of a producer's connection."""
        connections = self._producing[identity.client_id]
        connections[identity.connection] -= 1
        if not connections[identity.connection]:
            del connections[identity.connection]
            if not connections:
                del self._producing[identity.client_id]

    def _in_group(self, connection: Hashable, kind: int, group: str) -> None:
        groups = self._of_connection.get(connection, _NO_NAMES)
        if group not in groups[kind]:
            self._set_groups(connection, kind, (*groups[kind], intern(group)))

    def _remove_consumer(self, connection: Hashable, group: str) -> None:
        entry = self._consumers.get(group)
        if entry is None or entry.members.pop(connection, None) is None:
            return
        self._count -= 1
        self._forget_group(connection, 0, group)
        if not entry.members:
            self._expression_bytes -= entry.size
            del self._consumers[group]

    def _forget_group(self, connection: Hashable, kind: int, group: str) -> None:
        others = tuple(each for each in self._of_connection[connection][kind] if each != group)
        self._set_groups(connection, kind, others)

    def _set_groups(self, connection: Hashable, kind: int, names: Names) -> None:
        consuming, producing = self._of_connection.get(connection, _NO_NAMES)
        groups = (names, producing) if kind == 0 else (consuming, names)
        if any(groups):
            if len(self._alike) >= ALIKE_MAX:
                self._alike.clear()
            self._of_connection[connection] = self._alike.setdefault(groups, groups)
        else:
            del self._of_connection[connection]

    def _changed(self, group: str) -> None:
        connections = tuple(self._consumers[group].members)
        for listener in self._listeners:
            listener(group, connections)


def _silent(members: dict[Hashable, _Member], limit: float) -> list[Hashable]:
    return [connection for connection, member in members.items() if member.seen < limit]


def _subscribe(known: dict[str, GroupSubscription], wanted: Iterable[GroupSubscription]) -> bool:
    """Replace the subscriptions; return whether a topic was added or removed. A new version is not such a change."""
    topics, changed = set(), False
    for subscription in wanted:
        topics.add(subscription.topic)
        old = known.get(subscription.topic)
        changed |= old is None
        if old is None or subscription.version > old.version:
            known[subscription.topic] = subscription
    for topic in known.keys() - topics:
        del known[topic]
        changed = True
    return changed
