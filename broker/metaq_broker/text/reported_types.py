"""The message types that consumer groups reported with ``messageType``, for their ``fetch``.

They are in memory only: after a restart, a ``fetch`` is refused and the client reports its types again. So it is for a
group that was forgotten because too many others reported theirs since.

Source: docs/protocol.md, "messageType and fetch".
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, NamedTuple

from metaq.formats.message_types import TYPE_CHARS_MAX
from metaq.protocols.text.commands import ALL_TYPES

TYPES_MAX: Final = 1000
"""Limit on types in one report."""

MEMORY_BYTES_MAX: Final = 16 << 20
"""Approximate limit on what all reports together take; the ones that were not used for the longest time go."""

REFUSED_MAX: Final = 1000
"""Limit on the refused fetches that are remembered; beyond it all are forgotten."""

_REPORT_BYTES: Final = 500
_TYPE_BYTES: Final = 100
"""What Python needs for a report and for each of its types, beside their characters."""


class Report(NamedTuple):
    """The types of a group for a topic, from a client that started at ``start_time``; ``None``: all messages."""

    start_time: int
    types: frozenset[bytes] | None

    @property
    def text(self) -> str:
        """The types as MetaQ writes them in its reply: ``[paid, open]``."""
        types = [ALL_TYPES] if self.types is None else sorted(each.decode() for each in self.types)
        return f"[{', '.join(types)}]"


def checked_types(types: Iterable[str]) -> frozenset[bytes] | None:
    """Return the encoded types; ``None`` if they stand for all messages.

    Raises:
        ValueError: There are too many, or one is too long or not UTF-8.
    """
    names = frozenset(types)
    if len(names) > TYPES_MAX:
        raise ValueError(f"{len(names)} message types: expected at most {TYPES_MAX}")
    for name in names:
        encoded = name.encode("utf-8", "surrogateescape")
        if len(encoded) > TYPE_CHARS_MAX:
            raise ValueError(f"a message type of {len(encoded)} bytes: expected at most {TYPE_CHARS_MAX}")
        if any("\ud800" <= letter <= "\udfff" for letter in name):
            raise ValueError(f"message type {encoded!r}: expected UTF-8")
    return None if not names or ALL_TYPES in names else frozenset(name.encode() for name in names)


class ReportedTypes:
    """The newest report of each group and topic."""

    def __init__(self, memory_bytes_max: int = MEMORY_BYTES_MAX) -> None:
        self._memory_bytes_max = memory_bytes_max
        self._memory_bytes = 0
        self._reports: OrderedDict[tuple[str, str], Report] = OrderedDict()  # least recently used first
        self._refused: set[tuple[str, str, int, int]] = set()  # group, topic, start time, partition

    def add(self, group: str, topic: str, report: Report) -> Report:
        """Take a report unless the one there is as new or newer; return the one that applies now."""
        client = (group, topic, report.start_time)
        self._refused -= {fetch for fetch in self._refused if fetch[:3] == client}
        known = self._reports.get((group, topic))
        if known is not None and known.start_time >= report.start_time:
            self._reports.move_to_end((group, topic))
            return known
        self._forget(group, topic)
        self._reports[group, topic] = report
        self._memory_bytes += _memory_bytes(group, topic, report)
        while self._memory_bytes > self._memory_bytes_max and len(self._reports) > 1:
            self._forget(*next(iter(self._reports)))
        return report

    def find(self, group: str, topic: str, start_time: int) -> Report | None:
        """Return the report that applies to a client that started at ``start_time``.

        ``None``: there is none, or the client is newer than the one that reported, and must report its own types.
        """
        report = self._reports.get((group, topic))
        if report is None or report.start_time < start_time:
            return None
        self._reports.move_to_end((group, topic))
        return report

    def is_refused_again(self, group: str, topic: str, partition: int, start_time: int) -> bool:
        """Take note of a refused fetch; return whether the last one of this client for the partition was refused, too.

        ``True`` and ``False`` take turns as long as the client does not report.
        """
        fetch = (group, topic, start_time, partition)
        if fetch in self._refused:
            self._refused.remove(fetch)
            return True
        if len(self._refused) >= REFUSED_MAX:
            self._refused.clear()
        self._refused.add(fetch)
        return False

    def _forget(self, group: str, topic: str) -> None:
        report = self._reports.pop((group, topic), None)
        if report is not None:
            self._memory_bytes -= _memory_bytes(group, topic, report)


def _memory_bytes(group: str, topic: str, report: Report) -> int:
    types = report.types or ()
    return _REPORT_BYTES + len(group) + len(topic) + sum(_TYPE_BYTES + len(each) for each in types)
