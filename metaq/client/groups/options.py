"""The options of a group consumer, checked before anything is opened."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any, ClassVar, Final, Generic, Literal, TypedDict

from metaq.backends.metaq.session import REPLY_BYTES_MAX
from metaq.client.groups.deliveries import D, Delivery
from metaq.client.groups.ownership.assignment import STRATEGIES, Strategy
from metaq.client.groups.ownership.starts import Start, checked_start
from metaq.client.groups.partition import ReadSettings
from metaq.client.offsets import OffsetStorage
from metaq.formats.message_types import encode_types
from metaq.model import TopicPartition
from metaq.sizes import parse_size

OnReject = str | Callable[[D, BaseException | None], object]
"""``park``, ``drop``, ``topic:NAME``, or a function of the message and the last error."""

Assigned = Callable[[Sequence[TopicPartition]], object]
"""A function that is called with partitions, in the reading thread."""

_TOPIC: Final = re.compile(r"topic:(?P<topic>[^\s/,]+)")

_TYPES: Final[Mapping[str, tuple[tuple[Any, ...], str]]] = {
    "group": ((str,), "a text"),
    "consumer_id": ((str, NoneType), "a text"),
    "parking": ((str, Path, NoneType), "a path"),
    "fetch_bytes": ((int, str), "a number of bytes, or a text such as '1 MiB'"),
    **dict.fromkeys(("max_attempts", "dedupe"), ((int,), "a number")),
    **dict.fromkeys(("retry_max_s", "save_s", "drain_s", "poll_max_s"), ((int, float), "seconds")),
    **dict.fromkeys(("on_reject", "assignment"), ((str, Callable), "a text or a function")),
    **dict.fromkeys(("on_assigned", "on_revoked", "where"), ((Callable, NoneType), "a function")),
}
"""Option -> its types, and their names in errors."""


class SharedOptions(TypedDict, Generic[D], total=False):
    """Options that consumers of both systems have beside group and topics, for type checkers."""

    start: Start
    auto_ack: bool
    max_attempts: int
    on_reject: OnReject[D]
    retry_max_s: float
    assignment: Literal["range", "consistent"] | Strategy
    on_assigned: Assigned | None
    on_revoked: Assigned | None
    offsets: OffsetStorage | None
    where: Callable[[D], bool] | None
    dedupe: int
    fetch_bytes: int | str
    consumer_id: str | None
    save_s: float
    drain_s: float
    poll_max_s: float
    on_corrupt: Literal["raise", "skip"]
    parking: str | Path | None


class MoreOptions(SharedOptions[Delivery], total=False):
    """The options of ``ConsumerOptions`` beside group and topics, for type checkers."""

    types: Sequence[str]
    session_s: float
    parked_retry_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions(Generic[D]):
    """Options of consumers of both systems. Durations in seconds.

    Raises:
        ValueError: An option is outside its allowed range; the error names it.
        TypeError: An option has the wrong type.
    """

    group: str
    topics: Sequence[str]
    start: Start = "earliest"
    auto_ack: bool = True
    max_attempts: int = 6
    on_reject: OnReject[D] = "park"
    retry_max_s: float = 5.0
    assignment: Literal["range", "consistent"] | Strategy = "range"
    on_assigned: Assigned | None = None
    on_revoked: Assigned | None = None
    offsets: OffsetStorage | None = None
    where: Callable[[D], bool] | None = None
    dedupe: int = 0
    fetch_bytes: int | str = 1 << 20
    consumer_id: str | None = None
    save_s: float = 5.0
    drain_s: float = 20.0
    poll_max_s: float = 1.0
    on_corrupt: Literal["raise", "skip"] = "raise"
    parking: str | Path | None = None

    def __post_init__(self) -> None:
        check_names("topics", self.topics, "a list of at least one topic, such as ['orders']", least=1)
        self._check_types()
        if not self.group or re.search(r"[\s/,]", self.group):
            raise ValueError(f"group {self.group!r}: expected a name without blanks, slashes and commas")
        for name, least, value in (("max_attempts", 1, self.max_attempts), ("dedupe", 0, self.dedupe)):
            if value < least:
                raise ValueError(f"{name} {value!r}: expected {least} or more")
        for name in ("retry_max_s", "save_s", "poll_max_s"):
            check_seconds(name, getattr(self, name))
        if not 0 <= self.drain_s < 86400:
            raise ValueError(f"drain_s {self.drain_s!r}: expected seconds, 0 or more, below a day")
        if isinstance(self.on_reject, str) and not self._is_rejection(self.on_reject):
            words = ", ".join(map(repr, (*self.rejections(), "topic:NAME")))
            raise ValueError(f"on_reject {self.on_reject!r}: expected {words} or a function")
        if isinstance(self.assignment, str) and self.assignment not in STRATEGIES:
            raise ValueError(f"assignment {self.assignment!r}: expected {', '.join(STRATEGIES)} or a function")
        if self.on_corrupt not in ("raise", "skip"):
            raise ValueError(f"on_corrupt {self.on_corrupt!r}: expected raise or skip")
        checked_start(self.start)
        self.fetch_size()

    def _check_types(self) -> None:
        """Raise for options of a wrong type, which would otherwise fail later."""
        for name, (types, called) in _TYPES.items():
            value = getattr(self, name)
            if not isinstance(value, types) or isinstance(value, bool):
                raise TypeError(f"{name} {value!r}: expected {called}")
        if not isinstance(self.auto_ack, bool):
            raise TypeError(f"auto_ack {self.auto_ack!r}: expected True or False")
        missing = [name for name in ("load", "save", "close") if not hasattr(self.offsets, name)]
        if self.offsets is not None and missing:
            raise TypeError(f"offsets {self.offsets!r}: expected a storage, which has {missing[0]}")

    @staticmethod
    def rejections() -> tuple[str, ...]:
        """The allowed words for ``on_reject``."""
        return ("park", "drop")

    def _is_rejection(self, text: str) -> bool:
        return text in self.rejections() or _TOPIC.fullmatch(text) is not None

    @property
    def sends_away(self) -> bool:
        """Whether rejected messages are sent to a broker."""
        return self.reject_topic is not None

    @property
    def reject_topic(self) -> str | None:
        """The topic for rejected messages, if any."""
        match = _TOPIC.fullmatch(self.on_reject) if isinstance(self.on_reject, str) else None
        return match["topic"] if match else None

    def fetch_size(self) -> int:
        """Return ``fetch_bytes`` as a number."""
        size = parse_size(self.fetch_bytes) if isinstance(self.fetch_bytes, str) else self.fetch_bytes
        if not 1 <= size <= REPLY_BYTES_MAX:
            raise ValueError(f"fetch_bytes {self.fetch_bytes!r}: expected 1..{REPLY_BYTES_MAX} bytes")
        return size


def check_names(option: str, given: object, expected: str, *, least: int = 0) -> None:
    """Check an option that is a list of at least ``least`` texts.

    Raises:
        TypeError: It is something else; a single text is not accepted as a sequence of letters.
    """
    texts = given if isinstance(given, Sequence) and not isinstance(given, str) else None
    if texts is None or len(texts) < least or not all(isinstance(one, str) for one in texts):
        raise TypeError(f"{option} {given!r}: expected {expected}")


def check_seconds(name: str, value: float) -> None:
    """Check an option that is a duration.

    Raises:
        ValueError: It is not above 0 and below a day.
    """
    if not 0 < value < 86400:
        raise ValueError(f"{name} {value!r}: expected seconds above 0, below a day")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions(GroupOptions[Delivery]):
    """Options of ``MetaQ.consumer``; see ``GroupOptions``. ``types``: wanted message types, all if empty.

    ``parked_retry_s``: how long after it failed a parked message is passed to the handler of ``run`` again; ``None``:
    never.
    """

    shares: ClassVar[bool] = True
    """Whether the consumer divides the partitions with others that the brokers of a list know."""

    types: Sequence[str] = ()
    session_s: float = 30.0
    parked_retry_s: float | None = 300.0

    def __post_init__(self) -> None:
        GroupOptions.__post_init__(self)
        check_seconds("session_s", self.session_s)
        if not isinstance(self.parked_retry_s, int | float | NoneType) or isinstance(self.parked_retry_s, bool):
            raise TypeError(f"parked_retry_s {self.parked_retry_s!r}: expected seconds, or None")
        if self.parked_retry_s is not None:
            check_seconds("parked_retry_s", self.parked_retry_s)
        check_names("types", self.types, "a list of message types, such as ['paid']")
        if self.types:
            encode_types(self.types)

    @property
    def strategy(self) -> Strategy:
        """The assignment strategy."""
        return STRATEGIES[self.assignment] if isinstance(self.assignment, str) else self.assignment

    def read_settings(self, group: str) -> ReadSettings:
        """Return the settings for reading partitions, for the group ``group``."""
        return ReadSettings(group, self.fetch_size(), self.poll_max_s, tuple(self.types), self.on_corrupt == "skip")
