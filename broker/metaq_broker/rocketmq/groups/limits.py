"""How much the clients of a broker may make it remember about groups, and the error for a limit that is reached."""

from __future__ import annotations

from dataclasses import dataclass

from metaq.errors import MetaqError
from metaq.formats.topic_names import GROUP_BYTES_MAX, STORED_BYTES_MAX


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """Limits, for the whole broker unless stated otherwise."""

    groups_max: int = 10_000
    """Groups with settings."""

    name_bytes_max: int = 255
    """Of a client, of a group of producers, and of a topic that a group reads."""

    members_max: int = 100_000
    """A client counts once for each of its groups, of consumers and of producers."""

    groups_of_client_max: int = 256
    """Of consumers, and as many of producers, on one connection."""

    subscriptions_of_group_max: int = 1_000

    expression_bytes_max: int = 16 << 10
    """Limit on one subscription's expression, and on its tags together."""

    expressions_bytes_max: int = 64 << 20
    """Of all subscriptions of all groups."""

    queues_of_group_max: int = 65_536
    """Queues for which one group has offsets or locks."""

    locks_max: int = 200_000


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


def check_name(name: str, bytes_max: int) -> None:
    """Check that a name can be stored.

    Raises:
        NameRefused: It is not valid Unicode, or has more than ``bytes_max`` bytes in UTF-8.
    """
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise NameRefused(name, "it is not valid Unicode") from None
    if size > bytes_max:
        raise NameRefused(name, f"it takes {size} bytes in UTF-8, {bytes_max} are allowed")


def check_group_size(name: str, bytes_max: int) -> None:
    """Check that the retry topic of a consumer group would be short enough. Raises as ``check_name``."""
    check_name(name, bytes_max)
    size = len(name.encode())
    if size > GROUP_BYTES_MAX:
        limit = f"a group of consumers has {GROUP_BYTES_MAX} at most, since its retry topic %RETRY%NAME"
        raise NameRefused(name, f"it takes {size} bytes in UTF-8; {limit} has {STORED_BYTES_MAX}")


def check_group(name: str, bytes_max: int) -> None:
    """Check that a name is valid for a consumer group.

    Raises:
        NameRefused: As ``check_name``, or the retry topic would not be valid.
    """
    check_group_size(name, bytes_max)
    if "/" in name or "\0" in name:
        raise NameRefused(name, "it contains a slash or a zero byte, which its retry topic cannot have")
