"""Removes unused groups when there are too many, so that a client that uses many names does not block others.

An unused group has the default settings, no members, no offsets and no messages to retry: on its next use it would be
created again unchanged. Nothing is removed if only operators create groups.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from metaq.formats.topic_names import DEAD_PREFIX
from metaq_broker.log.engine.topics import Topics
from metaq_broker.rocketmq.groups.group_offsets import GroupOffsets
from metaq_broker.rocketmq.groups.group_settings import Groups
from metaq_broker.rocketmq.groups.members import Members
from metaq_broker.rocketmq.system_topics import retry_topic

_LOG: Final = logging.getLogger(__name__)

LOOK_S: Final = 5.0
"""Seconds between two scans for such groups, each of which takes some milliseconds."""


class UnusedGroups:
    """Removes unused groups. ``monotonic`` returns seconds of a clock that is never set."""

    def __init__(
        self, groups: Groups, members: Members, offsets: GroupOffsets, topics: Topics, monotonic: Callable[[], float]
    ) -> None:
        self._groups, self._members, self._offsets, self._topics = groups, members, offsets, topics
        self._monotonic, self._looked_s = monotonic, -LOOK_S
        groups.when_full = self._forget

    def _forget(self) -> None:
        now_s = self._monotonic()
        if now_s - self._looked_s < LOOK_S or not self._groups.create_unknown:
            return
        self._looked_s = now_s
        used = {*self._members.groups(), *self._offsets.groups()}
        unused = [group for group in self._groups.unchanged() if group not in used and not self._has_messages(group)]
        with self._topics.together():
            for group in unused:
                self._groups.delete(group)
                self._topics.delete(retry_topic(group))
        fields = {"groups": len(unused), "left": len(self._groups.all())}
        _LOG.warning("there are too many groups: those that were only named are forgotten", extra={"fields": fields})

    def _has_messages(self, group: str) -> bool:
        return self._topics.has_messages(retry_topic(group)) or self._topics.has_messages(DEAD_PREFIX + group)
