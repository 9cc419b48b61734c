"""How much the clients of a broker may make it remember about groups, and the error for a limit that is reached."""

from __future__ import annotations

from typing import Final, Protocol

from metaq.errors import MetaqError
from metaq.formats.topic_names import GROUP_BYTES_MAX, STORED_BYTES_MAX
from metaq_broker.operate.config.rocketmq import RocketmqConfig

NAME_BYTES_MAX: Final = 255
"""Of a client, of a group of producers, and of a topic that a group reads."""


class GroupLimits(Protocol):
    """Limits for the whole broker unless stated otherwise. The section ``[rocketmq]`` of the configuration has them."""

    @property
    def groups_max(self) -> int:
        """Groups with settings."""

    @property
    def members_max(self) -> int:
        """A client counts once for each of its groups, of consumers and of producers."""

    @property
    def groups_of_client_max(self) -> int:
        """Of consumers, and as many of producers, on one connection."""

    @property
    def subscriptions_of_group_max(self) -> int: ...

    @property
    def expression_bytes_max(self) -> int:
        """Limit on one subscription's expression, and on its tags together."""

    @property
    def expressions_bytes_max(self) -> int:
        """Of all subscriptions of all groups."""

    @property
    def queues_of_group_max(self) -> int:
        """Queues for which one group has offsets or locks."""

    @property
    def locks_max(self) -> int: ...


DEFAULT_LIMITS: Final[GroupLimits] = RocketmqConfig()


class GroupLimitReached(MetaqError):
    """``what`` would exceed ``limit``."""

    retryable = True

    def __init__(self, what: str, limit: int) -> None:
        self.what, self.limit = what, limit
        super().__init__(what, limit)

    def __str__(self) -> str:
        return f"too many {self.what}: the broker allows {self.limit}"


class NameRefused(MetaqError):
    """``name`` is not valid for a group, or one of its topics or clients: ``reason``."""

    def __init__(self, name: str, reason: str) -> None:
        self.name, self.reason = name, reason
        super().__init__(name, reason)

    def __str__(self) -> str:
        return f"name {self.name[:80]!r} is refused: {self.reason}"


def check_name(name: str) -> None:
    """Check that a name can be stored.

    Raises:
        NameRefused: It is not valid Unicode, or has more than ``NAME_BYTES_MAX`` bytes in UTF-8.
    """
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise NameRefused(name, "it is not valid Unicode") from None
    if size > NAME_BYTES_MAX:
        raise NameRefused(name, f"it takes {size} bytes in UTF-8, {NAME_BYTES_MAX} are allowed")


def check_group_size(name: str) -> None:
    """Check that the retry topic of a consumer group would be short enough. Raises as ``check_name``."""
    check_name(name)
    size = len(name.encode())
    if size > GROUP_BYTES_MAX:
        limit = f"a group of consumers has {GROUP_BYTES_MAX} at most, since its retry topic %RETRY%NAME"
        raise NameRefused(name, f"it takes {size} bytes in UTF-8; {limit} has {STORED_BYTES_MAX}")


def check_group(name: str) -> None:
    """Check that a name is valid for a consumer group.

    Raises:
        NameRefused: As ``check_name``, or the retry topic would not be valid.
    """
    check_group_size(name)
    if "/" in name or "\0" in name:
        raise NameRefused(name, "it contains a slash or a zero byte, which its retry topic cannot have")
