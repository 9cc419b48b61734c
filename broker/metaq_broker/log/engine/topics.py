"""The topics of a broker and their settings: from its configuration, and created by clients and operators.

Settings from clients and operators are durable, in the state table under ``topic/NAME``, and override the
configuration. The engine gets a configuration that contains these topics beside the file's own, so clients of every
protocol can use them.

A topic is known if it was created, if the configuration names it, or if it has messages. If a pattern of the
configuration admits every name (``[topic=*]``), a topic is known from its first message on.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Protocol

from metaq.errors import MetaqError
from metaq.formats.topic_names import storage_fault
from metaq_broker.log.state.state_table import OnDurable, StateTable
from metaq_broker.operate.config.configuration import BrokerConfig
from metaq_broker.operate.config.sections import TOPIC_KEYS, TopicConfig

PREFIX: Final = "topic/"

READ: Final = 4
WRITE: Final = 2
INHERIT: Final = 1
"""Bits of ``perm``. A topic with the last one is a template for topics that are created when they are first used."""

TOPICS_MAX: Final = 10_000
"""Limit on topics that are created while the broker runs."""

COUNTED_FOR_MS: Final = 1000

UNFLUSHED_MAX: Final = 1000
UNFLUSHED_MS_MAX: Final = 20
"""Without ``wait_for_disk``: how many acknowledged messages of a partition may be not durable, and for how long."""

QUEUES_MAX: Final = 4_096
"""Limit on queues of one topic."""


@dataclass(frozen=True, slots=True)
class ServedTopic:
    """Queues below ``read_queues`` can be read, queues below ``write_queues`` written. The rest is for clients."""

    read_queues: int
    write_queues: int
    perm: int = READ | WRITE
    order: bool = False
    filter_type: str = "SINGLE_TAG"
    sys_flag: int = 0
    message_type: str = ""

    @property
    def queues(self) -> int:
        """Number of existing queues: while a topic shrinks, queues that can only be read count, too."""
        return max(self.read_queues, self.write_queues)


_NAMES: Final = tuple(field.name for field in fields(ServedTopic))


class TopicRefused(MetaqError):
    """``topic`` cannot be created, changed or deleted: ``reason``."""

    def __init__(self, topic: str, reason: str) -> None:
        self.topic, self.reason = topic, reason
        super().__init__(topic, reason)

    def __str__(self) -> str:
        return f"topic {self.topic[:80]!r}: {self.reason}"


class StoredTopics(Protocol):
    """The part of ``TopicStores`` that is needed here."""

    @property
    def partition_count(self) -> int: ...

    @property
    def topics(self) -> Set[str]: ...

    def has_topic(self, topic: str) -> bool: ...

    def partition_counts(self) -> dict[str, int]:
        """Return topic -> number of its partitions, up to the last one."""


Announce = Callable[[Callable[[], None]], None]

OnTopicChange = Callable[[str | None], None]
"""Called with the topic that was created, changed or deleted; ``None`` = any may have changed."""


class Topics:
    """``built_in`` topics always exist and cannot be changed.

    They are left out of lists for users, and so are topics that begin with one of ``hidden_prefixes``.

    ``apply`` is called with the configuration for the engine, now and after each change. ``now_ms`` returns the time.
    Without ``wait_for_disk``, puts to topics that clients created are acknowledged before they are durable. Only the
    broker puts to ``reserved`` topics.
    """

    def __init__(
        self,
        table: StateTable,
        stores: StoredTopics,
        config: BrokerConfig,
        apply: Callable[[BrokerConfig], None],
        now_ms: Callable[[], int],
        built_in: Mapping[str, ServedTopic] | None = None,
        hidden_prefixes: tuple[str, ...] = (),
        wait_for_disk: bool = True,
        reserved: Set[str] = frozenset(),
    ) -> None:
        self._wait_for_disk, self._reserved = wait_for_disk, frozenset(reserved)
        self._table, self._stores, self._apply, self._now_ms = table, stores, apply, now_ms
        self._config, self._of_file = config, _named(config)
        self._built_in = dict(built_in or {})
        self._hidden_prefixes = hidden_prefixes
        self._made = {key.removeprefix(PREFIX): _read(value) for key, value in table.items(PREFIX)}
        self._added = {topic: self._topic_config(topic, each) for topic, each in self._overriding().items()}
        self._known_stored = frozenset(stores.topics)
        self._listeners: list[OnTopicChange] = []
        self.announce: Announce = lambda call: call()
        """Calls back when everyone outside who must know all changes knows them."""
        self._depth, self._is_due = 0, False
        self._counted: tuple[int, int, dict[str, int]] = (-1, 0, {})
        self.changes = 0
        """Number of changes since the start."""
        self.changed_ms = now_ms()
        """Time of the last change."""
        self._apply(self._merged())

    # ---- asking

    def settings(self, topic: str) -> ServedTopic | None:
        """Return the settings of a topic; ``None`` if it is not known."""
        found = self._made.get(topic) or self._built_in.get(topic) or self._of_file.get(topic)
        if found is None and self._stores.has_topic(topic):
            return self._stored(topic, self._counts().get(topic, 1))
        return found

    def all(self) -> Mapping[str, ServedTopic]:
        """Return the known topics, including built-in ones."""
        counts = self._counts().items()
        return {
            **{topic: self._stored(topic, count) for topic, count in counts},
            **self._of_file,
            **self._built_in,
            **self._made,
        }

    def has_messages(self, topic: str) -> bool:
        """Return whether messages of a topic are, or were, stored."""
        return self._stores.has_topic(topic)

    def accepts(self, topic: str) -> bool:
        """Return whether messages can be stored in a topic: not in one that only has some of earlier."""
        return topic in self._made or topic in self._built_in or self._config.accepts(topic)

    def is_built_in(self, topic: str) -> bool:
        return topic in self._built_in

    def when_changed(self, listener: OnTopicChange) -> None:
        """Call ``listener`` after each change of topics or settings."""
        self._listeners.append(listener)

    # ---- changing

    @contextmanager
    def together(self) -> Iterator[None]:
        """Call ``apply`` only once, at the end, for all changes in the block: it costs work for each topic."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if self._is_due and not self._depth:
                self._is_due = False
                self._apply(self._merged())

    def create(
        self, topic: str, settings: ServedTopic, on_durable: OnDurable | None = None, *, is_of_clients: bool = True
    ) -> None:
        """Create a topic, or change its settings. ``on_durable`` is called when that is durable and announced.

        Not ``is_of_clients``: the broker itself needs it, whatever clients have made.

        Raises:
            TopicRefused: It is built in, its name or a number is not allowed, or there are too many topics.
            StateFull: There is no space for its settings.
        """
        self.check(topic, settings, is_of_clients=is_of_clients)
        made = None if on_durable is None else self._then_announced(on_durable)
        self._table.put(PREFIX + topic, _written(settings), made, is_of_clients=is_of_clients)
        if self._made.get(topic) != settings:
            self._made[topic] = settings
            self._added[topic] = self._topic_config(topic, settings)
            self._changed(topic)

    def _then_announced(self, on_durable: OnDurable) -> OnDurable:
        def made(failure: Exception | None) -> None:
            if failure is None:
                self.announce(lambda: on_durable(None))
            else:
                on_durable(failure)

        return made

    def create_like(
        self, topic: str, template: str, queues: int, on_durable: OnDurable | None = None
    ) -> ServedTopic | None:
        """Create a topic with the permissions of ``template`` and at most as many queues; return its settings.

        ``None`` if ``template`` is not known or no template. Raises as ``create``.
        """
        model = self.settings(template)
        if model is None or not model.perm & INHERIT:
            return None
        count = max(1, min(queues, model.write_queues))
        settings = ServedTopic(count, count, model.perm & ~INHERIT, filter_type=model.filter_type)
        self.create(topic, settings, on_durable)
        return settings

    def keep_readable(self) -> list[str]:
        """Make all stored partitions readable queues of writable topics; return the changed topics.

        For settings that are older than the messages. Queues and topics that an operator removed are restored. A topic
        that was not about to shrink or grow gets as many queues for writing.
        """
        changed = []
        for topic, stored in self._stores.partition_counts().items():
            settings, count = self._made.get(topic), min(stored, QUEUES_MAX)
            if settings is not None and settings.queues < count:
                write_queues = count if settings.read_queues == settings.write_queues else settings.write_queues
                self.create(topic, dataclasses.replace(settings, read_queues=count, write_queues=write_queues))
            elif settings is None and topic not in self._built_in and not self._config.accepts(topic):
                self.create(topic, ServedTopic(count, count))
            else:
                continue
            changed.append(topic)
        return changed

    def delete(self, topic: str, on_durable: OnDurable | None = None) -> None:
        """Forget the settings of a topic, if it is known. Its messages are not deleted.

        Raises:
            TopicRefused: It is built in, or the configuration names it.
        """
        self.check_deletable(topic)
        known = self._made.pop(topic, None)
        self._table.delete(PREFIX + topic, on_durable)
        if known is not None:
            del self._added[topic]
            self._changed(topic)

    def check_deletable(self, topic: str) -> None:
        """Check that a topic can be deleted. Raises as ``delete``."""
        if topic in self._built_in:
            raise TopicRefused(topic, "it is a system topic")
        if topic in self._of_file:
            raise TopicRefused(topic, "it is configured in server.ini; remove it there")

    def configure(self, config: BrokerConfig) -> None:
        """Apply another configuration, such as after a reload."""
        self._config, self._of_file = config, _named(config)
        self._added = {topic: self._topic_config(topic, each) for topic, each in self._overriding().items()}
        self._changed(None)

    def read_again(self) -> None:
        """Read the table again; others than this object have changed it."""
        made = {key.removeprefix(PREFIX): _read(value) for key, value in self._table.items(PREFIX)}
        if made != self._made:
            self._made = made
            self.configure(self._config)

    def stored_topics_changed(self) -> None:
        """Update after topics got their first message, or lost their last partition."""
        stored = frozenset(self._stores.topics)
        changed, self._known_stored = stored ^ self._known_stored, stored
        for topic in changed - self._made.keys():
            self._changed(topic)

    def check_all(self, topics: Mapping[str, ServedTopic]) -> None:
        """Check that clients may make or change these topics so, every one of them. Raises as ``create``."""
        new = {True: 0, False: 0}
        for topic, settings in topics.items():
            is_hidden = topic.startswith(self._hidden_prefixes)
            self.check(topic, settings, others=new[is_hidden])
            new[is_hidden] += topic not in self._made
        entries = {PREFIX + topic: _written(settings) for topic, settings in topics.items()}
        self._table.check_all(entries, is_of_clients=True)

    def check(self, topic: str, settings: ServedTopic, *, is_of_clients: bool = True, others: int = 0) -> None:
        """Check that a topic may be made or changed so, and ``others`` like it before. Raises ``TopicRefused``."""
        if topic in self._built_in:
            raise TopicRefused(topic, "it is a system topic")
        if (fault := storage_fault(topic)) is not None:
            raise TopicRefused(topic, fault)
        for name in ("read_queues", "write_queues"):
            if not 0 <= getattr(settings, name) <= QUEUES_MAX:
                raise TopicRefused(topic, f"{getattr(settings, name)} queues; expected 0 to {QUEUES_MAX}")
        if not 0 <= settings.perm <= READ | WRITE | INHERIT:
            raise TopicRefused(topic, f"perm {settings.perm}; expected 0 to {READ | WRITE | INHERIT}")
        if is_of_clients and topic not in self._made and self._made_like(topic) + others >= TOPICS_MAX:
            raise TopicRefused(topic, f"clients have made {TOPICS_MAX} topics, and the broker allows no more")

    def _made_like(self, topic: str) -> int:
        """Return how many topics clients created among the hidden ones, or among the others; each has its own limit."""
        hidden = topic.startswith(self._hidden_prefixes)
        return sum(each.startswith(self._hidden_prefixes) == hidden for each in self._made)

    def _counts(self) -> dict[str, int]:
        """Return topic -> stored partitions; counted again when there are more, and once a second."""
        count, now_ms = self._stores.partition_count, self._now_ms()
        if count != self._counted[0] or abs(now_ms - self._counted[1]) > COUNTED_FOR_MS:
            self._counted = count, now_ms, self._stores.partition_counts()
        return self._counted[2]

    def _stored(self, topic: str, partitions: int) -> ServedTopic:
        if not self._config.accepts(topic):
            return ServedTopic(partitions, partitions, READ)
        count = max(partitions, self._config.topic_settings(topic).num_partitions)
        return ServedTopic(count, self._config.topic_settings(topic).num_partitions)

    def _overriding(self) -> dict[str, ServedTopic]:
        """Return the topics whose settings override the configuration."""
        return {**self._built_in, **self._made}

    def _changed(self, topic: str | None) -> None:
        self.changes += 1
        self._counted = (-1, 0, {})
        self.changed_ms = self._now_ms()
        if self._depth:
            self._is_due = True
        else:
            self._apply(self._merged())
        for listener in self._listeners:
            listener(topic)

    def _merged(self) -> BrokerConfig:
        """Return the file's configuration with these topics."""
        made = {
            topic: config.num_partitions
            for topic, config in self._added.items()
            if topic not in self._config.topics
            and topic not in self._built_in
            and not topic.startswith(self._hidden_prefixes)
        }
        return dataclasses.replace(
            self._config,
            made_topics=made,
            topics={**self._config.topics, **self._added},
            hidden_topics=frozenset(self._built_in),
            hidden_prefixes=self._hidden_prefixes,
            reserved_topics=self._reserved,
        )

    def _topic_config(self, topic: str, settings: ServedTopic) -> TopicConfig:
        base = self._config.topic_settings(topic)
        inherited: dict[str, Any] = {key.attribute: getattr(base, key.attribute) for key in TOPIC_KEYS}
        inherited["num_partitions"] = max(1, settings.queues)
        if topic in self._built_in:  # read as soon as they are acknowledged, so they must be durable
            inherited["unflush_threshold"] = 0
        elif topic not in self._config.topics and not self._wait_for_disk:
            inherited["unflush_threshold"], inherited["unflush_interval_ms"] = UNFLUSHED_MAX, UNFLUSHED_MS_MAX
        return TopicConfig(**inherited)


def _named(config: BrokerConfig) -> dict[str, ServedTopic]:
    """Return the topics that the configuration names, without its patterns."""
    topics: dict[str, ServedTopic] = {}
    for topic, each in config.topics.items():
        if "*" not in topic:
            perm = READ * each.accept_subscribe | WRITE * each.accept_publish
            topics[topic] = ServedTopic(each.num_partitions, each.num_partitions, perm)
    return topics


def _written(settings: ServedTopic) -> bytes:
    return json.dumps(asdict(settings)).encode()


def _read(value: bytes) -> ServedTopic:
    found: dict[str, Any] = json.loads(value)
    return ServedTopic(**{name: found[name] for name in _NAMES if name in found})
