"""The consumer groups that this broker keeps: members, owners of its partitions, and committed offsets.

Each broker is asked only about its own partitions, so two consumers never own one partition, whatever lists of brokers
they use. A member has a session, which every request with its token prolongs; when it ends, its partitions are free.
An owner is on the disk before its claim is answered: after a restart of the broker, its session begins again, so a
partition is not given to another consumer while the owner before the restart may still read it.

An offset is stored only if no other consumer owns the partition, and if the stored one is the expected one.

Keys in the state table: ``["owner",GROUP,TOPIC,INDEX]``, with the owner's session, and
``["offset",GROUP,TOPIC,INDEX]``. Both values are JSON arrays.

Source: docs/adr/0042-groups-at-brokers.md.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from metaq.discovery.zk_layout import GroupOffset, is_unchanged
from metaq.protocols.text.group_bodies import LocalPartition, StoredOffset
from metaq_broker.log.state.state_table import StateTable

SESSIONS_MAX: Final = 100_000
"""Limit on the members of all groups."""

TOPICS_OF_MEMBER_MAX: Final = 1024
TOPIC_BYTES_MAX: Final = 16 << 20
"""Limit on the names of the topics of all members, in UTF-8."""

_OWNER, _OFFSET = "owner", "offset"
_NOTHING: Final = StoredOffset(None, None)


class GroupRefused(Exception):
    """The request is not possible; the text says why."""


class IdTaken(GroupRefused):
    """Another consumer with this id is a member."""


class NotMember(GroupRefused):
    """The session of the token has ended: join again."""


@dataclass(slots=True)
class _Session:
    """``topics`` is ``None`` for an owner from before a restart that has not joined again."""

    token: str
    consumer: str
    length_s: float
    until_s: float
    topics: tuple[str, ...] | None


@dataclass(slots=True)
class _Group:
    sessions: dict[str, _Session] = field(default_factory=dict)
    owners: dict[LocalPartition, str] = field(default_factory=dict)
    offsets: dict[LocalPartition, StoredOffset] = field(default_factory=dict)
    changes: int = 0
    """Counts what other members must know: joined and departed members, partitions that have become free."""


class KeptGroups:
    """All groups of a broker. ``monotonic`` returns seconds of a clock that is never set."""

    def __init__(self, table: StateTable, monotonic: Callable[[], float]) -> None:
        self.table, self._monotonic = table, monotonic
        self._run = secrets.token_hex(4)
        self._groups: dict[str, _Group] = {}
        self._count = self._topic_bytes = 0
        for key, value in table.items():
            kind, name, topic, index = json.loads(key)
            group, fields = self._groups.setdefault(name, _Group()), json.loads(value)
            if kind == _OWNER:
                token, consumer, length_s = fields
                if token not in group.sessions:
                    self._add(group, _Session(token, consumer, length_s, monotonic() + length_s, None))
                group.owners[topic, index] = token
            else:
                group.offsets[topic, index] = StoredOffset(*fields)

    # members

    def join(self, name: str, token: str, consumer: str, length_s: float, topics: tuple[str, ...]) -> None:
        """Make a consumer a member, or prolong its session.

        Raises:
            IdTaken: Another session with this consumer id has not ended.
            GroupRefused: There are too many members, or topics.
        """
        group = self._current(name)
        taken = [one for one in group.sessions.values() if one.consumer == consumer and one.token != token]
        if taken:
            raise IdTaken(f"group {name}: a consumer with the id {consumer} is a member already")
        session = group.sessions.get(token)
        self._check_topics(topics, session)
        if session is None:
            self._check_count()
            session = _Session(token, consumer, length_s, 0.0, None)
            self._add(group, session)
        if session.topics != topics:
            self._topic_bytes += _bytes(topics) - _bytes(session.topics)
            session.topics = topics
            group.changes += 1
        session.length_s, session.until_s = length_s, self._monotonic() + length_s
        self._groups[name] = group

    def leave(self, name: str, token: str) -> None:
        group = self._current(name)
        if token in group.sessions:
            self._end(name, group, token)
            self._forget_empty(name, group)

    def members(self, name: str) -> dict[str, tuple[str, ...]]:
        """Return consumer id -> topics."""
        sessions = self._current(name).sessions.values()
        return {one.consumer: one.topics for one in sessions if one.topics is not None}

    def generation(self, name: str) -> str:
        """Return a text that changes when a member joins or leaves, and when a partition becomes free."""
        return f"{self._run}-{self._current(name).changes}"

    # owners

    def owned(self, name: str, token: str) -> list[LocalPartition]:
        return [place for place, owner in self._current(name).owners.items() if owner == token]

    def claim(self, name: str, token: str, wanted: Iterable[LocalPartition]) -> None:
        """Make a member the owner of exactly the ``wanted`` partitions that no other consumer owns.

        Raises:
            NotMember: Its session has ended.
            StateFull: There are too many entries; nothing was changed.
        """
        group = self._current(name)
        session = group.sessions.get(token)
        if session is None or session.topics is None:
            raise NotMember(f"group {name}: the session has ended; join again")
        places = set(wanted)
        left = [place for place in self.owned(name, token) if place not in places]
        value = json.dumps([token, session.consumer, session.length_s]).encode()
        entries = {_key(_OWNER, name, place): value for place in places - group.owners.keys()}
        self.table.check_all(entries, deleted=[_key(_OWNER, name, place) for place in left], is_of_clients=True)
        self.release(name, token, left)
        for place in places - group.owners.keys():
            self.table.put(_key(_OWNER, name, place), value, is_of_clients=True)
            group.owners[place] = token

    def release(self, name: str, token: str, places: Iterable[LocalPartition]) -> None:
        """Free those ``places`` that the token owns."""
        group = self._current(name)
        for place in places:
            if group.owners.get(place) == token:
                self._free(name, group, place)

    def owner(self, name: str, place: LocalPartition) -> str | None:
        """Return the consumer id of the owner of a partition."""
        group = self._current(name)
        token = group.owners.get(place)
        return None if token is None else group.sessions[token].consumer

    # offsets

    def load(self, name: str, places: Iterable[LocalPartition]) -> dict[LocalPartition, StoredOffset]:
        """Return what is stored for ``places``; partitions without an entry are left out."""
        offsets = self._current(name).offsets
        return {place: offsets[place] for place in places if place in offsets}

    def save(
        self,
        name: str,
        token: str,
        offsets: Mapping[LocalPartition, StoredOffset],
        expected: Mapping[LocalPartition, StoredOffset] | None,
    ) -> dict[LocalPartition, StoredOffset]:
        """Store offsets where no other consumer is the owner, and the stored one is unchanged; return the others.

        ``expected``: the offsets that the consumer knows; ``None``: not compared. A field that is ``None`` is kept.

        Raises:
            ValueError: An offset has not the form of one. Nothing was changed, as in the next case.
            StateFull: There are too many entries.
        """
        group, changed = self._current(name), dict[LocalPartition, StoredOffset]()
        accepted = dict[LocalPartition, StoredOffset]()
        for place, new in offsets.items():
            there = group.offsets.get(place, _NOTHING)
            known = None if expected is None else expected.get(place, _NOTHING).offset
            compared = expected is not None and new.offset is not None
            if group.owners.get(place, token) != token or (compared and not _is_same(there, known, new)):
                changed[place] = there
                continue
            accepted[place] = StoredOffset(
                *(now if now is not None else old for now, old in zip(new, there, strict=True)),
            )
        entries = {_key(_OFFSET, name, place): json.dumps(stored).encode() for place, stored in accepted.items()}
        self.table.check_all(entries, is_of_clients=True)
        for key, value in entries.items():
            self.table.put(key, value, is_of_clients=True)
        if accepted:
            group.offsets.update(accepted)
            self._groups[name] = group
        return changed

    def forget(self, name: str) -> None:
        """Forget a group and its offsets.

        Raises:
            GroupRefused: It has members.
        """
        if members := self.members(name):
            raise GroupRefused(f"group {name} has members: {', '.join(sorted(members))}")
        group = self._current(name)
        for token in list(group.sessions):
            self._end(name, group, token)
        for place in group.offsets:
            self.table.delete(_key(_OFFSET, name, place))
        group.offsets.clear()
        self._forget_empty(name, group)

    def names(self) -> list[str]:
        """Return the groups with members or offsets."""
        return sorted(name for name in list(self._groups) if self._is_known(self._current(name)))

    def offsets(self, name: str) -> Mapping[LocalPartition, StoredOffset]:
        return dict(self._current(name).offsets)

    # sessions

    def _current(self, name: str) -> _Group:
        """Return a group, without the sessions that have ended. A new group is not stored."""
        group = self._groups.get(name)
        if group is None:
            return _Group()
        now_s = self._monotonic()
        for token in [one.token for one in group.sessions.values() if one.until_s <= now_s]:
            self._end(name, group, token)
        self._forget_empty(name, group)
        return group

    def _forget_empty(self, name: str, group: _Group) -> None:
        if not self._is_known(group):
            self._groups.pop(name, None)

    def _is_known(self, group: _Group) -> bool:
        return bool(group.sessions or group.owners or group.offsets)

    def _add(self, group: _Group, session: _Session) -> None:
        group.sessions[session.token] = session
        self._count += 1

    def _check_count(self) -> None:
        if self._count >= SESSIONS_MAX:
            for name in list(self._groups):
                self._current(name)
        if self._count >= SESSIONS_MAX:
            raise GroupRefused(f"there are {SESSIONS_MAX} members of groups at this broker; no more are possible")

    def _check_topics(self, topics: tuple[str, ...], session: _Session | None) -> None:
        if len(topics) > TOPICS_OF_MEMBER_MAX:
            raise GroupRefused(f"a member has {len(topics)} topics; this broker allows {TOPICS_OF_MEMBER_MAX}")
        new = _bytes(topics) - (0 if session is None else _bytes(session.topics))
        if new > 0 and self._topic_bytes + new > TOPIC_BYTES_MAX:
            raise GroupRefused(f"the topics of all members take more than {TOPIC_BYTES_MAX} bytes at this broker")

    def _end(self, name: str, group: _Group, token: str) -> None:
        self._topic_bytes -= _bytes(group.sessions.pop(token).topics)
        self._count -= 1
        group.changes += 1
        for place in [place for place, owner in group.owners.items() if owner == token]:
            self._free(name, group, place)

    def _free(self, name: str, group: _Group, place: LocalPartition) -> None:
        del group.owners[place]
        group.changes += 1
        self.table.delete(_key(_OWNER, name, place))


def _bytes(topics: tuple[str, ...] | None) -> int:
    return sum(len(topic.encode()) for topic in topics or ())


def _key(kind: str, group: str, place: LocalPartition) -> str:
    return json.dumps([kind, group, *place], ensure_ascii=False, separators=(",", ":"))


def _is_same(there: StoredOffset, known: str | None, new: StoredOffset) -> bool:
    return is_unchanged(_parsed(there.offset), _parsed(known), GroupOffset.parse(new.offset or ""))


def _parsed(text: str | None) -> GroupOffset | None:
    return None if text is None else GroupOffset.parse(text)
