"""The record of a pair in ZooKeeper: ``ROOT/pairs/BROKERID``, changed by compare-and-set with the node's version only.

``in_sync`` names the members that have everything that was acknowledged. Only they may lead, so only they are recorded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Self

FORMAT_VERSION: Final = 1


class PairRecordInvalid(ValueError):
    """The node does not contain a record of a pair; the text names what is wrong, and what is allowed."""


@dataclass(frozen=True, slots=True)
class PairMemberEntry:
    """A member's ``HOST:PORT``, and the boot that it was last registered with."""

    address: str
    boot: str


@dataclass(frozen=True, slots=True)
class PairRecord:
    """``epoch`` rises with every election. ``master`` is who won it; it leaves the set if it lost its data."""

    epoch: int
    master: str
    in_sync: frozenset[str]
    members: Mapping[str, PairMemberEntry]

    def registering(self, uuid: str, entry: PairMemberEntry, *, instead_of: Iterable[str] = ()) -> Self:
        """Return the record with a member's entry, without the members that it replaces."""
        replaced = set(instead_of)
        members = {key: value for key, value in self.members.items() if key not in replaced} | {uuid: entry}
        return replace(self, members=members, in_sync=self.in_sync - replaced)

    def elected(self, uuid: str, entry: PairMemberEntry, epoch: int) -> Self:
        """Return the record after the election of a member: nobody else is in sync with it yet."""
        members = dict(self.members) | {uuid: entry}
        return replace(self, epoch=epoch, master=uuid, in_sync=frozenset({uuid}), members=members)

    def to_json(self) -> bytes:
        """Encode; members and sets are sorted, so equal records have equal bytes."""
        members = {uuid: {"address": entry.address, "boot": entry.boot} for uuid, entry in self.members.items()}
        fields = {
            "version": FORMAT_VERSION,
            "epoch": self.epoch,
            "master": self.master,
            "inSync": sorted(self.in_sync),
            "members": members,
        }
        return json.dumps(fields, sort_keys=True).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        """Decode and check.

        Raises:
            PairRecordInvalid: It is not a record, is of a later format, or contradicts itself.
        """
        try:
            fields = json.loads(text)
            version = fields["version"]
            if version != FORMAT_VERSION:
                raise PairRecordInvalid(f"its version is {version!r}; this broker reads version {FORMAT_VERSION}")
            members = {
                str(uuid): PairMemberEntry(str(entry["address"]), str(entry["boot"]))
                for uuid, entry in fields["members"].items()
            }
            record = cls(fields["epoch"], fields["master"], frozenset(fields["inSync"]), members)
        except (UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            raise PairRecordInvalid(f"it is not the record of a pair: {error!r}") from None
        record._check()
        return record

    def _check(self) -> None:
        if not isinstance(self.epoch, int) or isinstance(self.epoch, bool) or self.epoch < 1:
            raise PairRecordInvalid(f"its epoch is {self.epoch!r}; expected 1 and up")
        if not self.in_sync or not self.in_sync <= self.members.keys():
            raise PairRecordInvalid(f"its set in sync is {sorted(self.in_sync)}; expected members, at least one")
