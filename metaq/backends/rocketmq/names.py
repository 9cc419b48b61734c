"""Full names of topics and groups, with their namespace, and the names that RocketMQ reserves.

A namespace is a prefix that clients put in front of topics and groups: ``ns%orders``, ``%RETRY%ns%group``. Reserved
names are not changed.
"""

from __future__ import annotations

from typing import Final

from metaq.formats.topic_names import GROUP_PREFIXES, TEMPLATE_TOPIC

PRODUCERS_BYTES_MAX: Final = 255
"""Limit on a producer group's full name, which needs no topic."""

_SYSTEM_NAMES: Final = frozenset(
    (
        *(TEMPLATE_TOPIC, "SELF_TEST_TOPIC", "BenchmarkTest", "OFFSET_MOVED_EVENT", "SCHEDULE_TOPIC_XXXX"),
        "TRANS_CHECK_MAX_TIME_TOPIC",
    )
)
_SYSTEM_PREFIXES: Final = ("rmq_sys_", "RMQ_SYS_", "CID_RMQ_SYS_")


def with_namespace(name: str, namespace: str | None) -> str:
    """Return the full name of a topic or a group."""
    if not namespace or is_system_name(name):
        return name
    prefix = next((each for each in GROUP_PREFIXES if name.startswith(each)), "")
    own = f"{namespace}%"
    return name if name[len(prefix) :].startswith(own) else f"{prefix}{own}{name[len(prefix) :]}"


def without_namespace(name: str, namespace: str | None) -> str | None:
    """Return a name without ``namespace``; ``None`` if it has another one. The inverse of ``with_namespace``."""
    if not namespace or is_system_name(name):
        return name
    prefix = next((each for each in GROUP_PREFIXES if name.startswith(each)), "")
    own = f"{prefix}{namespace}%"
    return prefix + name[len(own) :] if name.startswith(own) else None


def is_system_name(name: str) -> bool:
    """Whether a name is reserved by RocketMQ."""
    return name in _SYSTEM_NAMES or name.startswith(_SYSTEM_PREFIXES)


def is_derived_topic(topic: str) -> bool:
    """Whether a topic belongs to a group: its retry topic or its dead letters."""
    return topic.startswith(GROUP_PREFIXES)


def check_group(group: str, namespace: str | None, bytes_max: int) -> None:
    """Check that brokers accept a group name.

    Raises:
        ValueError: It is too long, or not valid Unicode.
    """
    try:
        size = len(with_namespace(group, namespace).encode())
    except UnicodeEncodeError:
        raise ValueError(f"group {group[:80]!r}: the name is not valid Unicode") from None
    if size > bytes_max:
        counted = " with its namespace" if namespace else ""
        raise ValueError(
            f"group {group[:80]!r}: the name has {size} bytes in UTF-8{counted}, brokers accept {bytes_max}"
        )
