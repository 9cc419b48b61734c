"""Names of topics and of groups: every limit, and the one check of each system.

====================  ==========================================================================================
the bundled broker    a topic is the name of a folder: 200 bytes in UTF-8; a group of consumers has a topic of
                      retries, ``%RETRY%GROUP``
RocketMQ              a topic has 127 letters, digits and any of ``% | _ -``; topics of retries and of dead letters
                      have 255, and so has a group; its topic of retries leaves it 248
====================  ==========================================================================================
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

RETRY_PREFIX: Final = "%RETRY%"
"""Before a group's name: the topic of messages that are delivered to the group again."""

DEAD_PREFIX: Final = "%DLQ%"
"""Before a group's name: the topic of its dead letters."""

GROUP_PREFIXES: Final = (RETRY_PREFIX, DEAD_PREFIX)

TEMPLATE_TOPIC: Final = "TBW102"
"""RocketMQ's topic whose settings a broker copies when it creates an unknown topic."""

STORED_BYTES_MAX: Final = 200
"""Of a topic in UTF-8. File systems allow 255 bytes for a folder's name; the index and a margin go off."""

GROUP_BYTES_MAX: Final = STORED_BYTES_MAX - len(RETRY_PREFIX)
"""Of a group of consumers, with its namespace."""

ROCKETMQ_CHARS_MAX: Final = 127
ROCKETMQ_CHARS: Final = r"[%|a-zA-Z0-9_-]"
ROCKETMQ_ALLOWED: Final = "letters, digits and any of % | _ -"

_GROUPS_TOPIC_CHARS_MAX: Final = 255
_NAME: Final = re.compile(f"{ROCKETMQ_CHARS}+")


def storage_fault(topic: str) -> str | None:
    """Return why ``topic`` cannot be stored, ``None`` if it can. What can be stored cannot leave the data folder."""
    if topic in ("", ".", ".."):
        return "it is not a folder name"
    if "/" in topic or "\0" in topic:
        return "it contains a slash or a zero byte"
    try:
        size = len(topic.encode())
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    return f"it takes {size} bytes in UTF-8, {STORED_BYTES_MAX} are possible" if size > STORED_BYTES_MAX else None


def rocketmq_fault(topic: str, *, of_groups: bool = False) -> str | None:
    """Return why RocketMQ refuses the name of a topic, in the words of 4.9.7; ``None`` if it does not.

    ``of_groups``: topics of retries and dead letters may be longer, as they have the group's name in them.
    """
    return _kept_fault(topic, of_groups) if len(topic) <= _GROUPS_TOPIC_CHARS_MAX else _fault(topic, of_groups)


def _fault(topic: str, of_groups: bool) -> str | None:
    if not topic.strip():
        return "The specified topic is blank."
    if not _NAME.fullmatch(topic):
        return "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    is_long = of_groups and topic.startswith(GROUP_PREFIXES)
    if len(topic) > (_GROUPS_TOPIC_CHARS_MAX if is_long else ROCKETMQ_CHARS_MAX):
        return "The specified topic is longer than topic max length."
    return None


_kept_fault: Final = lru_cache(maxsize=4096)(_fault)
