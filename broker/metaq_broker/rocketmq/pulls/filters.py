"""Filters of subscriptions: by tag or, with ``enablePropertyFilter``, by a condition in SQL92.

A condition is compiled once, and evaluated for each message that a pull scans. A pull with a long condition scans fewer
messages, so that it takes no longer than others.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from functools import lru_cache, partial
from typing import Final, NamedTuple

from metaq.formats.rocketmq.sql_conditions import compile_condition
from metaq.formats.rocketmq.tags import TagFilter

TAG: Final = "TAG"
SQL92: Final = "SQL92"

LOOKED_AT_MAX: Final = 800
"""Limit on messages that one read scans if few of them match."""

KEPT_CHARACTERS_MAX: Final = 256
"""Longest expression whose tags are cached."""

TAGS_OF_WEIGHT: Final = 16
"""Tags that take about a kilobyte."""

LOOKED_AT_MIN: Final = 8
SHORT_CHARACTERS: Final = 100
"""Longest condition that costs little compared with reading the message."""

Condition = Callable[[Mapping[str, str]], bool]
"""Whether a message with certain properties is wanted."""

CheckFilter = Callable[[str, str], str | None]
"""Kind and text of a filter -> why it cannot be used, ``None`` if it can."""


class Picked(NamedTuple):
    """The messages with one of ``tags`` (``None`` = all) for which ``condition`` is true.

    One read scans ``looked_at_max`` messages at most. ``weight``: how many usual filters take as much memory: 1 with
    up to 15 tags, or a short condition.
    """

    tags: Container[bytes] | None = None
    condition: Condition | None = None
    looked_at_max: int = LOOKED_AT_MAX
    weight: int = 1


def filter_checker(has_conditions: bool) -> CheckFilter:
    """Return the check of filters for a broker with or without conditions."""
    return partial(_fault, has_conditions)


def _fault(has_conditions: bool, kind: str, expression: str) -> str | None:
    if kind == TAG:
        return None
    if kind != SQL92 or not has_conditions:
        return f"The broker does not support consumer to filter message by {kind}"
    try:
        wanted_by_condition(expression)
    except ValueError as fault:
        return f"the condition cannot be used: {fault}"
    return None


ONLY_TAGS: Final = filter_checker(False)


def wanted_by_tags(expression: str | None) -> Picked:
    """Return the filter of a tag expression. Raises as ``TagFilter.parse``."""
    return (_kept_tags if len(expression or "") <= KEPT_CHARACTERS_MAX else _tags)(expression)


def _tags(expression: str | None) -> Picked:
    tags = TagFilter.parse(expression)
    return Picked(tags.encoded, weight=1 + len(tags.names or ()) // TAGS_OF_WEIGHT)


_kept_tags: Final = lru_cache(maxsize=4096)(_tags)


@lru_cache(maxsize=256)
def wanted_by_condition(expression: str) -> Picked:
    """Return the filter for a condition, which is compiled.

    Raises:
        ValueError: It is not a condition.
    """
    characters = max(SHORT_CHARACTERS, len(expression))
    looked_at_max = max(LOOKED_AT_MIN, LOOKED_AT_MAX * SHORT_CHARACTERS // characters)
    return Picked(None, compile_condition(expression), looked_at_max, LOOKED_AT_MAX // looked_at_max)
