"""A slave's front end for RocketMQ's clients: serves no client, but keeps what a promotion needs.

It stores the copy of its master's state (``replication.state_copy``), adds the topics that clients created at the
master to the engine, and keeps retention from deleting waiting messages.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from metaq_broker.log.engine.topics import PREFIX, Topics
from metaq_broker.log.files.errors import StateFull
from metaq_broker.log.state.state_mark import KEY as COUNT_KEY
from metaq_broker.log.state.state_table import StateTable
from metaq_broker.replication.state_copy import Change, StateSource
from metaq_broker.rocketmq.delays.level_queues import level_key
from metaq_broker.rocketmq.delays.timed_queue import KEY as TIMED_KEY
from metaq_broker.rocketmq.half_messages.half_messages import KEY as HALF_KEY
from metaq_broker.rocketmq.half_messages.half_messages import read_positions
from metaq_broker.rocketmq.parts import FrontEndParts, offset_of
from metaq_broker.rocketmq.system_topics import HALF_TOPIC, NOTE_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC

_LOG: Final = logging.getLogger(__name__)

SOURCE_KEY: Final = "copied-from"
"""Key of a slave's state: the position up to which it was copied, ``NUMBER POSITION`` in decimal; ``0 0``: not yet."""

OWN_KEYS: Final = frozenset((SOURCE_KEY, COUNT_KEY))
"""Keys that each broker has for itself."""


class Standby:
    """The copied state; implements ``replication.state_copy.StateTarget``."""

    def __init__(self, parts: FrontEndParts, state: StateTable, topics: Topics) -> None:
        self._parts, self._state, self.topics = parts, state, topics
        if not is_copy(state):  # from now on it is not this broker's own state
            with suppress(StateFull):
                state.put(SOURCE_KEY, _encode(StateSource()))

    @property
    def source(self) -> StateSource:
        """Up to where the state was copied."""
        value = self._state.get(SOURCE_KEY)
        return StateSource() if value is None else StateSource(*map(int, value.split()))

    def take(self, source: StateSource, changes: Sequence[Change], *, whole: bool) -> None:
        """Apply copied changes; they are durable within a second."""
        changes = [change for change in changes if change[0] not in OWN_KEYS]
        if whole:
            entries: dict[str, bytes] = {}
            for key, value in changes:
                if value is None:
                    entries.pop(key, None)
                else:
                    entries[key] = value
            _LOG.info("the state of the master was copied", extra={"fields": {"entries": len(entries)}})
            entries[SOURCE_KEY] = _encode(source)
            if (count := self._state.get(COUNT_KEY)) is not None:
                entries[COUNT_KEY] = count
            self._state.replace(entries, lambda error: None)  # the table retries failed writes
        else:
            for key, value in changes:
                if value is None:
                    self._state.delete(key)
                else:
                    self._state.put(key, value)
            self._state.put(SOURCE_KEY, _encode(source))
        if whole or any(key.startswith(PREFIX) for key, _ in changes):
            self.topics.read_again()

    def needed_from(self, topic: str, partition: int) -> int | None:
        """Return from which offset on messages that wait are needed still, ``None`` where none wait."""
        ordinal = self._needed_ordinal(topic, partition)
        return None if ordinal is None else offset_of(self._parts.engine.stores.get(topic, partition), ordinal)

    def _needed_ordinal(self, topic: str, queue: int) -> int | None:
        if topic in (HALF_TOPIC, NOTE_TOPIC):
            positions = read_positions(self._state.get(HALF_KEY))
            return positions.half if topic == HALF_TOPIC else positions.notes
        keys = {SCHEDULE_TOPIC: level_key(queue + 1), TIMER_TOPIC: TIMED_KEY}
        return int(self._state.get(keys[topic]) or 0) if topic in keys else None


def is_copy(state: StateTable) -> bool:
    """Return whether the state is a slave's copy, or empty."""
    return state.get(SOURCE_KEY) is not None


def make_own(state: StateTable) -> None:
    """Turn the copy into this broker's own state."""
    state.delete(SOURCE_KEY)


def _encode(source: StateSource) -> bytes:
    return b"%d %d" % source
