"""Administration of the consumer groups of a RocketMQ cluster: names, topics, members, resetting offsets."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from metaq.backends.rocketmq.administration import ask_connections, ask_groups, ask_members, ask_topics_of
from metaq.backends.rocketmq.errors import RequestRefused
from metaq.backends.rocketmq.groups.offsets import Offsets
from metaq.backends.rocketmq.names import with_namespace, without_namespace
from metaq.backends.rocketmq.pool import SessionPool
from metaq.backends.rocketmq.session import Session
from metaq.client.browser import Start
from metaq.client.cluster import OffsetChange
from metaq.client.rocketmq.groups.offsets import RocketStarts
from metaq.discovery.name_server import NameServerDirectory
from metaq.errors import TopicNotFound
from metaq.formats.topic_names import RETRY_PREFIX
from metaq.model import Partition, TopicPartition

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedConsumer:
    """A running consumer, as its brokers know it. ``version`` is RocketMQ's number of the client's release."""

    client_id: str
    address: str
    language: str
    version: int


class RocketGroupView:
    """Asks the masters of all brokers. Methods raise as in ``RocketClusterView``, and ``RequestRefused``."""

    def __init__(self, directory: NameServerDirectory, pool: SessionPool, offsets: Offsets) -> None:
        self._directory, self._pool, self._offsets = directory, pool, offsets

    def names(self) -> list[str]:
        """Return the groups that any broker knows, sorted."""
        found = {name for names in self._of_each(ask_groups) for name in names}
        own = {without_namespace(name, self._directory.namespace) for name in found}
        return sorted(name for name in own if name is not None)

    def topics(self, group: str) -> list[str]:
        """Return the topics for which the group has offsets, sorted, including its retry topic.

        Raises:
            ValueError: The brokers do not report it (a proxy).
        """
        name = self._name(group)
        try:
            found = {
                each
                for topics in self._of_each(lambda session, broker: ask_topics_of(session, broker, name))
                for each in topics
            }
        except RequestRefused as error:
            raise ValueError(f"lag of group {group!r}: name its topics; {error}") from error
        own = {without_namespace(topic, self._directory.namespace) for topic in found}
        retry_topic = RETRY_PREFIX + group
        with suppress(TopicNotFound):
            self._directory.queues(retry_topic)
            own.add(retry_topic)
        return sorted(topic for topic in own if topic is not None)

    def members(self, group: str) -> list[str]:
        """Return the ids of the consumers of a group that are running, sorted."""
        name = self._name(group)
        listed = self._of_each(lambda session, broker: ask_members(session, broker, name))
        return sorted({member for members in listed for member in members})

    def consumers(self, group: str) -> list[ListedConsumer]:
        """Return the running consumers of a group, sorted by their ids; each is listed once."""
        name = self._name(group)
        listed = self._of_each(lambda session, broker: ask_connections(session, broker, name))
        found = {
            one.client_id: ListedConsumer(
                client_id=one.client_id, address=one.client_addr, language=one.language, version=one.version
            )
            for connections in listed
            for one in connections
        }
        return [found[client_id] for client_id in sorted(found)]

    def plan_reset(
        self, group: str, topic: str, start: Start, partitions: Collection[Partition] | None = None
    ) -> list[OffsetChange]:
        """Return the changes for ``reset`` that make ``group`` begin at ``start``, in ``partitions`` or in all.

        Raises:
            ValueError: The topic has no such queue, or the queue no such offset.
        """
        there = self._directory.queues(topic)
        wanted = there if partitions is None else list(partitions)
        if unknown := sorted(map(str, set(wanted) - set(there))):
            raise ValueError(f"topic {topic!r} has no queue {unknown[0]}; it has {', '.join(map(str, there))}")
        places = [TopicPartition(topic, queue) for queue in wanted]
        committed, ranges = self._offsets.committed(group, places), self._offsets.ranges(places)
        starts = RocketStarts(self._offsets, group, start, None)
        changes = []
        for where in places:
            to, there_is = starts.resolve(where).offset, ranges[where]
            if not there_is.start <= to <= there_is.end:
                raise ValueError(f"{where}: offset {to}: expected {there_is.start}..{there_is.end}")
            changes.append(OffsetChange(topic=topic, partition=where.partition, position=committed[where], to=to))
        return changes

    def reset(self, group: str, changes: Collection[OffsetChange]) -> None:
        """Set the offsets of a group that is not running.

        Raises:
            ValueError: The group has running consumers, which would overwrite the offsets.
        """
        if running := self.members(group):
            raise ValueError(f"group {group!r} has running consumers, which would overwrite it: {', '.join(running)}")
        self._offsets.commit(group, {TopicPartition(one.topic, one.partition): one.to for one in changes})

    def _name(self, group: str) -> str:
        return with_namespace(group, self._directory.namespace)

    def _of_each(self, ask: Callable[[Session, str], _T]) -> list[_T]:
        answers = []
        for broker_name, address in self._directory.masters().items():
            with self._pool.lease(address) as session:
                answers.append(ask(session, broker_name))
        return answers
