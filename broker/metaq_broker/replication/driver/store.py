"""The four operations on the store that has the record of a pair: read, compare-and-set, watch, liveness.

The store needs nothing but these, so that another one can stand behind them. Nothing depends on a clock or on a session
of the store: the record changes by compare-and-set only, and who is alive is a hint.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from metaq.errors import MetaqError


class StoreAway(MetaqError):
    """The store does not answer; a change may have been made nevertheless, now or later."""

    retryable = True


class StoreRefused(MetaqError):
    """The store refuses, and will do so until somebody changes it; the text is one sentence for the operator."""


class StoredRecord(NamedTuple):
    """The bytes of the record, and its version, which changes with every change."""

    content: bytes
    version: int


class Conflict(Enum):
    """Another version is stored, or none, or one where none was expected: nothing was changed."""

    CONFLICT = "conflict"


@dataclass(frozen=True, slots=True)
class LiveMember:
    """What a member announces while it is alive. ``blank``: it has no data, and never belonged to a pair."""

    address: str
    blank: bool

    def to_json(self) -> str:
        return json.dumps({"address": self.address, "blank": self.blank}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> LiveMember | None:
        """Decode; ``None`` for foreign content."""
        try:
            fields = json.loads(text)
            return cls(str(fields["address"]), fields["blank"] is True)
        except (ValueError, KeyError, TypeError):
            return None


OnChange = Callable[[], None]


class PairStore(Protocol):
    """The store of one pair. Calls are made one at a time, on the event loop.

    All methods but ``watch`` and ``close`` raise ``StoreAway`` and ``StoreRefused``.
    """

    async def read(self) -> StoredRecord | None:
        """Return the record; ``None`` if there is none. It is at least as new as what was read before."""

    async def compare_and_set(self, version: int | None, content: bytes) -> int | Conflict:
        """Store ``content`` if the record still has ``version`` (``None``: if there is none); return the new version.

        After ``StoreAway`` it may have been stored, or may be stored later.
        """

    def watch(self, callback: OnChange) -> None:
        """Call ``callback`` whenever the record or the members that are alive may have changed."""

    async def announce(self, uuid: str, member: LiveMember) -> None:
        """Be announced as alive from now on, as long as this process is connected."""

    async def alive(self) -> Mapping[str, LiveMember]:
        """Return the members that are announced, by uuid."""

    async def close(self) -> None:
        """End the announcement."""
