"""Topics and groups as the servers know them: with their namespace, and those that are RocketMQ's own.

A namespace is a prefix that clients put in front of topics and groups: ``ns%orders``, ``%RETRY%ns%group``. Names of
RocketMQ's own stay as they are.
"""

from __future__ import annotations

from typing import Final

CONSUMERS_BYTES_MAX: Final = 193
"""Of the name of a group of consumers, with its namespace: ``%RETRY%GROUP`` is a topic, and the bundled broker's topics
have 200 at most."""
PRODUCERS_BYTES_MAX: Final = 255
"""Of the name of a group of producers, with its namespace. It has no topic."""

_PREFIXES: Final = ("%RETRY%", "%DLQ%")
_SYSTEM_NAMES: Final = frozenset(
    (
        *("TBW102", "SELF_TEST_TOPIC", "BenchmarkTest", "OFFSET_MOVED_EVENT", "SCHEDULE_TOPIC_XXXX"),
        "TRANS_CHECK_MAX_TIME_TOPIC",
    )
)
_SYSTEM_PREFIXES: Final = ("rmq_sys_", "RMQ_SYS_", "CID_RMQ_SYS_")


def with_namespace(name: str, namespace: str | None) -> str:
    """Return a topic or a group as the servers know it."""
    if not namespace or is_system_name(name):
        return name
    prefix = next((each for each in _PREFIXES if name.startswith(each)), "")
    own = f"{namespace}%"
    return name if name[len(prefix) :].startswith(own) else f"{prefix}{own}{name[len(prefix) :]}"


def without_namespace(name: str, namespace: str | None) -> str | None:
    """Return a name without ``namespace``; ``None`` if it is of another one. The inverse of ``with_namespace``."""
    if not namespace or is_system_name(name):
        return name
    prefix = next((each for each in _PREFIXES if name.startswith(each)), "")
    own = f"{prefix}{namespace}%"
    return prefix + name[len(own) :] if name.startswith(own) else None


def is_system_name(name: str) -> bool:
    """Whether RocketMQ itself uses a topic or group of this name."""
    return name in _SYSTEM_NAMES or name.startswith(_SYSTEM_PREFIXES)


def is_derived_topic(topic: str) -> bool:
    """Whether a topic belongs to a group: its messages to be consumed again, or those given up."""
    return topic.startswith(_PREFIXES)


def check_group(group: str, namespace: str | None, bytes_max: int) -> None:
    """Look whether brokers take a group of this name.

    Raises:
        ValueError: It is too long, or not valid Unicode.
    """
    try:
        size = len(with_namespace(group, namespace).encode())
    except UnicodeEncodeError:
        raise ValueError(f"group {group[:80]!r}: it is not valid Unicode") from None
    if size > bytes_max:
        counted = " with its namespace" if namespace else ""
        raise ValueError(f"group {group[:80]!r}: it takes {size} bytes in UTF-8{counted}, brokers take {bytes_max}")
