"""One consumer's membership of a group in MetaQ's tree: its id, the partitions it owns, the group's offsets.

Everything uses one ZooKeeper session. While the session lives, this consumer's nodes exist and no other consumer can
own its partitions; so an offset written in the session never belongs to another consumer's partition.

Source: docs/operations.md, "ZooKeeper".
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from metaq.discovery.group_offsets import check_name
from metaq.discovery.kept_offsets import KeptOffsets
from metaq.discovery.zk_client import SessionState, ZooKeeperClient
from metaq.discovery.zk_layout import (
    GroupOffset,
    Registrant,
    ZooKeeperAddress,
    ZooKeeperLayout,
    is_unchanged,
    parse_partition_count,
)
from metaq.errors import ConsumerIdInUse, ZooKeeperAway, ZooKeeperRefused
from metaq.model import Partition, TopicPartition
from metaq.net.clock import SYSTEM_CLOCK

SESSION_S: Final = 30.0
"""Session timeout: a silent consumer loses its partitions after this time. The same as in MetaQ's client."""

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GroupView:
    """``members``: consumer id -> its topics, for running consumers. ``partitions``: topic -> readable partitions.

    ``away``: brokers whose partitions are not among these as long as they cannot be asked. ``offsets_away``: those of
    them that have the group's offsets, too.
    """

    members: Mapping[str, Sequence[str]]
    partitions: Mapping[str, Sequence[Partition]]
    away: frozenset[int | str] = frozenset()
    offsets_away: frozenset[int | str] = frozenset()


class ZooKeeperMembership:
    """The consumer ``consumer_id`` of ``group``, which reads ``topics``. ``on_change`` must return at once.

    All methods raise ``ZooKeeperAway`` and ``ZooKeeperRefused``. One thread at a time.

    Raises:
        ValueError: The group, the consumer or a topic is not a valid node name.
    """

    registry = "ZooKeeper"
    exclusive = True

    def __init__(
        self,
        address: ZooKeeperAddress,
        group: str,
        consumer_id: str,
        topics: Collection[str],
        *,
        session_s: float = SESSION_S,
        timeout_s: float = 5.0,
        has_offsets: bool = True,
    ) -> None:
        self.kept = KeptOffsets(SYSTEM_CLOCK) if has_offsets else None
        """The remembered offsets of the group, if they are stored in ZooKeeper."""
        self.group, self.consumer_id = check_name(group, "group"), check_name(consumer_id, "consumer id")
        self._topics = [check_name(topic, "topic") for topic in topics]
        if wrong := [topic for topic in self._topics if "," in topic]:
            raise ValueError(f"topic {wrong[0]!r}: a topic of a consumer group must not contain a comma")
        self._address, self._session_s, self._timeout_s = address, session_s, timeout_s
        self._layout = ZooKeeperLayout(address.root)
        self._client: ZooKeeperClient | None = None
        self._registered_by: int | None = None
        self._state = SessionState.SUSPENDED
        self._on_change: Callable[[], None] = lambda: None
        self._on_lost: Callable[[], None] = lambda: None

    def start(self, on_change: Callable[[], None], on_lost: Callable[[], None]) -> None:
        """Start connecting. ``on_lost`` is called whenever the connection is lost, ``on_change`` after any change."""
        self._on_change, self._on_lost = on_change, on_lost
        self._client = ZooKeeperClient(
            self._address.hosts, self._session_s, self._timeout_s, self._note_state, lambda path: on_change()
        )
        self._client.start()

    def _note_state(self, state: SessionState) -> None:
        self._state = state
        if state is not SessionState.CONNECTED:
            self._on_lost()
        self._on_change()

    @property
    def connected(self) -> bool:
        """Whether ZooKeeper can be asked."""
        return self._state is SessionState.CONNECTED

    @property
    def registered(self) -> bool:
        """Whether the session of the last ``register`` still lives, as far as is known."""
        return self._registered_by is not None and self._connected_client.session_id == self._registered_by

    def register(self) -> None:
        """Join the group.

        Raises:
            ConsumerIdInUse: A consumer with this id is a member. It may have crashed, until its session expires.
        """
        client = self._connected_client
        path = self._layout.consumer_id(self.group, self.consumer_id)
        client.ensure(
            [
                self._layout.consumer_ids(self.group),
                *(f"{self._layout.topics_sub}/{topic}" for topic in self._topics),
                *(self._owners(topic) for topic in self._topics),
            ]
        )
        session = client.session_id
        client.create_ephemeral({path: ",".join(self._topics)})
        node, root = client.read([path, self._layout.root], watch=True)
        if node is None or root is None or node.owner != session:
            raise ConsumerIdInUse(self.group, self.consumer_id, path)
        if self.kept is not None:
            self.kept.registered((node.made_ms - root.made_ms) / 1000)
        self._registered_by = session

    def _owners(self, topic: str) -> str:
        return self._layout.owner(self.group, TopicPartition(topic, Partition(0, 0))).rpartition("/")[0]

    def view(self) -> GroupView:
        """Return the members and the readable partitions; ``on_change`` is called at the next change. A consumer whose
        node is missing is not registered any more.
        """
        client = self._connected_client
        ids = self._layout.consumer_ids(self.group)
        parents = [f"{self._layout.topics_sub}/{topic}" for topic in self._topics]
        consumers, *registrants = client.children([ids, *parents], watch=True)
        nodes = client.read(f"{ids}/{name}" for name in consumers or ())
        members = {
            name: node.text.split(",") for name, node in zip(consumers or (), nodes, strict=True) if node is not None
        }
        if not any(
            name == self.consumer_id and node is not None and node.owner == client.session_id
            for name, node in zip(consumers or (), nodes, strict=True)
        ):
            self._registered_by = None  # somebody has deleted this consumer's node
        partitions = {
            topic: self._partitions(parent, names or ())
            for topic, parent, names in zip(self._topics, parents, registrants, strict=True)
        }
        self._keep_offsets({TopicPartition(topic, one) for topic, there in partitions.items() for one in there})
        return GroupView(members, partitions)

    def _keep_offsets(self, partitions: Collection[TopicPartition]) -> None:
        """Remember the group's offsets, and write lost ones again, unless another member does."""
        if self.kept is not None and (lost := self.kept.look(partitions, self.load(partitions))):
            _LOG.warning("group %s: ZooKeeper has lost %d offsets; they are written again", self.group, len(lost))
            self.save_if_unchanged(lost, {})

    @property
    def refresh_s(self) -> float | None:
        """Seconds until the next check for lost offsets, ``None`` if there are none: other changes are reported."""
        return None if self.kept is None else self.kept.look_again_s

    def _partitions(self, parent: str, names: Sequence[str]) -> list[Partition]:
        registrants = {name: one for name in names if (one := Registrant.parse(name)) is not None}
        found: set[Partition] = set()
        texts = self._connected_client.read(f"{parent}/{name}" for name in registrants)
        for (name, registrant), node in zip(registrants.items(), texts, strict=True):
            if node is not None:
                count = self._count(f"{parent}/{name}", node.text)
                found |= {Partition(registrant.broker_id, index) for index in range(count)}
        return sorted(found)

    def _count(self, path: str, text: str) -> int:
        try:
            return parse_partition_count(text)
        except ValueError as error:
            raise ZooKeeperRefused(self._address.hosts, path, str(error)) from None

    def claim(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        """Claim ``partitions``, and return the ones that this consumer owns now.

        The others still belong to another consumer; ``on_change`` is called when one of them is released.
        """
        client, paths = self._connected_client, {self._layout.owner(self.group, one): one for one in partitions}
        taken = client.create_ephemeral(dict.fromkeys(paths, self.consumer_id))
        session = client.session_id
        nodes = client.read(taken, watch=True)
        others = {path for path, node in zip(taken, nodes, strict=True) if node is None or node.owner != session}
        return {where for path, where in paths.items() if path not in others}

    def owned_now(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        """Return the partitions whose owner nodes belong to the session in which this consumer registered.

        Raises:
            ZooKeeperAway: That session has ended.
        """
        client, session = self._session()
        client.sync(self._layout.root)  # the connected server may be behind
        paths = {self._layout.owner(self.group, where): where for where in partitions}
        nodes = client.read(paths)
        return {
            where
            for where, node in zip(paths.values(), nodes, strict=True)
            if node is not None and node.owner == session
        }

    def until_s(self, where: TopicPartition) -> float:
        """Until when the session of ``register`` certainly lives."""
        client = self._client
        return client.alive_until_s if client is not None and self.registered else -inf

    def _session(self) -> tuple[ZooKeeperClient, int]:
        client, session = self._connected_client, self._registered_by
        if session is None or client.session_id != session:
            raise ZooKeeperAway(self._address.hosts, "the session in which partitions were claimed has ended")
        return client, session

    def release(self, partitions: Collection[TopicPartition]) -> None:
        """Release ``partitions``. Partitions that another consumer owns meanwhile are not touched."""
        mine = self.owned_now(partitions)
        self._connected_client.delete([self._layout.owner(self.group, where) for where in mine])

    def load(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, GroupOffset]:
        """Return the group's committed offsets in ``partitions``; partitions without one are left out."""
        return {where: offset for where, (offset, _) in self._offsets(partitions).items() if offset is not None}

    def _offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[GroupOffset | None, int]]:
        """Return the offset in each partition that has a node, and the version of the node."""
        paths = {self._layout.offset(self.group, where): where for where in partitions}
        found: dict[TopicPartition, tuple[GroupOffset | None, int]] = {}
        for (path, where), node in zip(paths.items(), self._connected_client.read(paths), strict=True):
            if node is not None:
                try:
                    found[where] = GroupOffset.parse(node.text) if node.text else None, node.version
                except ValueError as error:
                    raise ZooKeeperRefused(self._address.hosts, path, str(error)) from None
        return found

    def save(self, offsets: Mapping[TopicPartition, GroupOffset]) -> None:
        """Commit ``offsets`` of partitions that this consumer owns.

        Raises:
            ZooKeeperAway: The session in which they were claimed has ended.
        """
        client, _ = self._session()
        texts = {self._layout.offset(self.group, where): str(offset) for where, offset in offsets.items()}
        missing = client.write(texts)
        client.ensure(missing)
        client.write({path: texts[path] for path in missing})

    def save_if_unchanged(
        self,
        offsets: Mapping[TopicPartition, GroupOffset],
        expected: Mapping[TopicPartition, GroupOffset | None],
    ) -> dict[TopicPartition, GroupOffset | None]:
        """Commit the offsets for which ``is_unchanged`` holds, as ``save`` does; return the stored offsets of the
        others.

        If the session ends in between, it is replaced automatically; the versions of the nodes reject a late write.
        """
        client, _ = self._session()
        there = self._offsets(offsets)
        changed: dict[TopicPartition, GroupOffset | None] = {
            where: offset
            for where, (offset, _) in there.items()
            if not is_unchanged(offset, expected.get(where), offsets[where])
        }
        places = {self._layout.offset(self.group, where): where for where in offsets if where not in changed}
        texts = {path: str(offsets[where]) for path, where in places.items()}
        late = client.replace(
            {path: (texts[path], there[where][1]) for path, where in places.items() if where in there}
        )
        new = {path: texts[path] for path, where in places.items() if where not in there}
        client.ensure({path.rpartition("/")[0] for path in new})
        late += client.create(new)
        found = self._offsets(places[path] for path in late) if late else {}
        return changed | {where: found[where][0] if where in found else None for where in map(places.__getitem__, late)}

    def close(self) -> None:
        """Leave the group: all nodes of this consumer are deleted at once."""
        if self._client is not None:
            self._client.close()
            self._client = None

    @property
    def _connected_client(self) -> ZooKeeperClient:
        if self._client is None:
            raise ZooKeeperAway(self._address.hosts, "the consumer is closed")
        return self._client
