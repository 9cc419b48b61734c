"""Fast parsing of JSON headers of pulls that differ from an earlier one in three numbers only, as one consumer's do.

As with sends (``send_headers``), a header is cut at the two offsets and the opaque. If the parts between them equal an
earlier header's, nothing else needs to be parsed.
"""

from __future__ import annotations

from typing import Final

from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.json_header import read_json
from metaq.protocols.remoting.like_headers import (
    KEPT_BYTES_MAX,
    KEPT_MAX,
    OPAQUE,
    FieldBytes,
    SharedFields,
    is_opaque,
    proven,
)

FRONTS: Final = (b'{"code":11,', b'{"code":361,')
"""Start of the headers that are handled here: pulls, written by fastjson."""

COMMIT_OFFSET, QUEUE_OFFSET = "commitOffset", "queueOffset"

_COMMIT, _QUEUE = b'"commitOffset":"', b'"queueOffset":"'
_COMMIT_BYTES, _QUEUE_BYTES, _OPAQUE_BYTES = len(_COMMIT), len(_QUEUE), len(OPAQUE)
_OFFSET_DIGITS_MAX: Final = 18

_Cut = tuple[FieldBytes, bytes, bytes, bytes]
"""The four parts of a header, and the numbers between them: two offsets and the opaque."""


class LikePull(dict[str, str]):
    """Fields of a pull that differs from earlier ones only in its two offsets.

    ``shared`` is the same object for all such pulls.
    """

    __slots__ = ("commit_offset", "queue_offset", "shared")

    commit_offset: int
    queue_offset: int
    shared: SharedFields


class PullHeaders:
    """A cache of pull headers."""

    def __init__(self) -> None:
        self._kept: dict[FieldBytes, tuple[RemotingCommand, SharedFields, bool]] = {}

    def read(self, header: bytes, body: bytes) -> RemotingCommand:
        """Return the command with this header, as ``read_json`` does."""
        if not header.startswith(FRONTS) or len(header) > KEPT_BYTES_MAX or (cut := _cut(header)) is None:
            return read_json(header, body)
        field_bytes, first, second, opaque = cut
        kept = self._kept.get(field_bytes)
        if kept is None:
            self._keep(field_bytes)
            return read_json(header, body)
        like, shared, commit_is_first = kept
        ext, commit, queue = LikePull(shared.fields), *((first, second) if commit_is_first else (second, first))
        ext[COMMIT_OFFSET], ext[QUEUE_OFFSET] = commit.decode(), queue.decode()
        ext.commit_offset, ext.queue_offset, ext.shared = int(commit), int(queue), shared
        return RemotingCommand(
            like.code, ext, body, int(opaque), like.flag, like.remark, like.language, like.version, like.codec
        )

    def _keep(self, field_bytes: FieldBytes) -> None:
        is_first = field_bytes[0].endswith(_COMMIT)
        names = (COMMIT_OFFSET, QUEUE_OFFSET) if is_first else (QUEUE_OFFSET, COMMIT_OFFSET)
        if (like := proven(field_bytes, names, ("7", "4"), ("8", "6"))) is not None:
            if len(self._kept) >= KEPT_MAX:
                self._kept.clear()
            self._kept[field_bytes] = like, SharedFields(like.ext), is_first


def _cut(header: bytes) -> _Cut | None:
    """Cut a header; return ``None`` if it has another form or unusual numbers."""
    find = header.find
    first_at, second_at = find(_COMMIT) + _COMMIT_BYTES, find(_QUEUE) + _QUEUE_BYTES
    if first_at < _COMMIT_BYTES or second_at < _QUEUE_BYTES:
        return None
    if second_at < first_at:
        first_at, second_at = second_at, first_at
    first_end, second_end = find(b'"', first_at), find(b'"', second_at)
    opaque_at = find(OPAQUE, second_end) + _OPAQUE_BYTES
    opaque_end = find(b",", opaque_at)
    if not first_at < first_end < second_at < second_end < opaque_at < opaque_end:
        return None
    first, second, opaque = header[first_at:first_end], header[second_at:second_end], header[opaque_at:opaque_end]
    if not (first.isdigit() and second.isdigit() and is_opaque(opaque)):
        return None
    if max(len(first), len(second)) > _OFFSET_DIGITS_MAX:
        return None
    field_bytes = header[:first_at], header[first_end:second_at], header[second_end:opaque_at], header[opaque_end:]
    return field_bytes, first, second, opaque


PULLS: Final = PullHeaders()
"""The cache of this process."""
