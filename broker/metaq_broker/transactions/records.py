"""The records of the journal: one class for each type, and its bytes.

All numbers are big-endian. ``text`` is uint32 byte length + UTF-8, ``bytes`` is uint32 length + bytes, ``list`` is
uint32 count + items. A transaction is identified by its ``serial``, a number that only the journal uses: keys may be
used again, and two connections may have local transactions of the same key at the same time.

::

    type  record       payload
     1    Messages     uint64 serial, uint32 chunk, list of (text topic, int32 partition, uint32 messages, bytes frames)
     2    Prepared     uint64 serial, uint32 chunks, text key, int64 epoch ms
     3    Committed    uint64 serial, uint32 chunks, text key, list of ends
     4    RolledBack   uint64 serial
     5    Applied      uint64 serial
     6    Heuristic    uint8 outcome, text key, uint64 serial, uint32 chunks, list of ends
     7    Forgotten    text key
     8    Decided      text query, int64 batch, list of text key, list of uint32 (position of a key committed here),
                       list of (uint64 serial, uint32 chunks, text key), list of ends
     9    Undecided    text query
    10    Decided      text contents, then as 8: a decision that says what the batch contains
    11    Committed    uint64 order, then as 3: a commit that is written again

    an end: text topic, int32 partition, int64 offset = the log's durable end when the commit was written

``chunks`` is how many ``Messages`` records (numbered from 0) the transaction has; all of them must be there. In
``Heuristic``, ``chunks`` and ends are used for the outcome "committed" only. Serial 0 there, and an empty list of
serials in ``Decided``, mean that the record only remembers the outcome and commits nothing. The ends of such a
``Decided`` name the topics that the batch has written to, with partition -1.
Commits are applied in their order: that is the LSN of the first record of the commit, and for a ``Decided``, that plus
the position of the branch in its list.
``RolledBack`` with serial 0 has no effect: by writing it, a master of a pair proves that it still is the master.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from metaq.formats.frame_block import FrameBlock
from metaq.model import Buffer, TransactionId, Xid, parse_transaction_id
from metaq_broker.transactions.interfaces import Unit

_U8, _U32, _U64 = struct.Struct(">B"), struct.Struct(">I"), struct.Struct(">Q")
_I32, _I64 = struct.Struct(">i"), struct.Struct(">q")
_T = TypeVar("_T")

Ends = Mapping[tuple[str, int], int]
"""(topic, partition) -> the log's durable end when a commit was written."""

NO_SERIAL: Final = 0
"""The serial of no transaction."""


class RecordDamaged(Exception):
    """A payload does not match its type. Its checksum is right, so another program wrote it."""


class Messages(NamedTuple):
    """Frames that were put in a transaction, in order per partition; ``chunk`` counts from 0."""

    serial: int
    chunk: int
    units: tuple[Unit, ...]


class PreparedRecord(NamedTuple):
    """The transaction is prepared. ``at_ms`` is wall-clock time."""

    serial: int
    chunks: int
    key: Xid
    at_ms: int


class Committed(NamedTuple):
    """The transaction is committed. ``order`` is its place among the commits; ``None``: the place of this record."""

    serial: int
    chunks: int
    key: TransactionId
    ends: Ends
    order: int | None = None


class RolledBack(NamedTuple):
    """A prepared transaction is rolled back. Other rollbacks need no record."""

    serial: int


class Applied(NamedTuple):
    """All messages of a committed transaction are durable in their partitions; its records are no longer needed."""

    serial: int


class Heuristic(NamedTuple):
    """An operator completed a prepared transaction; ``outcome`` is the XA code (6, 7 or 8) for its coordinator."""

    outcome: int
    key: Xid
    serial: int
    chunks: int
    ends: Ends


class Forgotten(NamedTuple):
    """The coordinator has acknowledged the heuristic outcome."""

    key: Xid


class Branch(NamedTuple):
    """A prepared transaction of this broker that a decision commits."""

    serial: int
    chunks: int
    key: Xid


class Decided(NamedTuple):
    """Batch ``batch_id`` of a query consists of ``branches``; ``here`` are the positions of this broker's branches.

    ``commits`` are the branches that this record commits.
    """

    query_id: str
    batch_id: int
    branches: tuple[Xid, ...]
    here: tuple[int, ...]
    commits: tuple[Branch, ...]
    ends: Ends
    contents: str | None = None
    """Description of the batch's contents, as the client gave it; ``None`` without one."""


class Undecided(NamedTuple):
    """The decisions of a query are forgotten, on an operator's request."""

    query_id: str


Record = Messages | PreparedRecord | Committed | RolledBack | Applied | Heuristic | Forgotten | Decided | Undecided


# ---- writing


def _text(value: str) -> bytes:
    encoded = value.encode()
    return _U32.pack(len(encoded)) + encoded


def _list(items: Iterable[bytes]) -> bytes:
    parts = list(items)
    return _U32.pack(len(parts)) + b"".join(parts)


def _ends(ends: Ends) -> bytes:
    return _list(_text(topic) + _I32.pack(index) + _I64.pack(end) for (topic, index), end in sorted(ends.items()))


def _branch(branch: Branch) -> bytes:
    return _U64.pack(branch.serial) + _U32.pack(branch.chunks) + _text(str(branch.key))


def _write_messages(r: Messages) -> list[Buffer]:
    parts: list[Buffer] = [_U64.pack(r.serial) + _U32.pack(r.chunk) + _U32.pack(len(r.units))]
    for unit in r.units:
        numbers = _I32.pack(unit.partition) + _U32.pack(unit.frames.count) + _U32.pack(len(unit.frames))
        parts += (_text(unit.topic) + numbers, unit.frames.data)
    return parts  # no copy: blocks may be large


def _write_prepared(r: PreparedRecord) -> bytes:
    return _U64.pack(r.serial) + _U32.pack(r.chunks) + _text(str(r.key)) + _I64.pack(r.at_ms)


def _write_committed(r: Committed) -> bytes:
    return _U64.pack(r.serial) + _U32.pack(r.chunks) + _text(str(r.key)) + _ends(r.ends)


def _write_committed_again(r: Committed) -> bytes:
    return _U64.pack(r.order) + _write_committed(r)


def _write_serial(r: RolledBack | Applied) -> bytes:
    return _U64.pack(r.serial)


def _write_heuristic(r: Heuristic) -> bytes:
    head = _U8.pack(r.outcome) + _text(str(r.key))
    return head + _U64.pack(r.serial) + _U32.pack(r.chunks) + _ends(r.ends)


def _write_forgotten(r: Forgotten) -> bytes:
    return _text(str(r.key))


def _write_decided(r: Decided) -> bytes:
    keys = _list(_text(str(key)) for key in r.branches)
    here = _list(map(_U32.pack, r.here))
    return _text(r.query_id) + _I64.pack(r.batch_id) + keys + here + _list(map(_branch, r.commits)) + _ends(r.ends)


def _write_decided_contents(r: Decided) -> bytes:
    return _text(r.contents or "") + _write_decided(r)


def _write_undecided(r: Undecided) -> bytes:
    return _text(r.query_id)


# ---- reading


class _Reader:
    """Reads the fields of one payload; every step checks that the bytes are there."""

    def __init__(self, payload: Buffer) -> None:
        self._payload, self._at = memoryview(payload), 0

    def number(self, form: struct.Struct) -> int:
        value: int = form.unpack_from(self._payload, self._at)[0]
        self._at += form.size
        return value

    def view(self) -> memoryview:
        length = self.number(_U32)
        start, self._at = self._at, self._at + length
        if self._at > len(self._payload):
            raise ValueError(f"{length} bytes are announced at {start}, the payload has {len(self._payload)}")
        return self._payload[start : self._at]

    def text(self) -> str:
        return str(self.view(), "utf-8")

    def key(self) -> TransactionId:
        return parse_transaction_id(self.text())

    def xid(self) -> Xid:
        key = self.key()
        if not isinstance(key, Xid):
            raise ValueError(f"{key} is not an XA transaction")
        return key

    def list(self, item: Callable[[], _T]) -> tuple[_T, ...]:
        return tuple(item() for _ in range(self.number(_U32)))

    def ends(self) -> dict[tuple[str, int], int]:
        return dict(self.list(lambda: ((self.text(), self.number(_I32)), self.number(_I64))))

    def unit(self) -> Unit:
        topic, partition, messages = self.text(), self.number(_I32), self.number(_U32)
        return Unit(topic, partition, FrameBlock(self.view(), messages))

    def branch(self) -> Branch:
        return Branch(self.number(_U64), self.number(_U32), self.xid())

    def finish(self) -> None:
        if self._at != len(self._payload):
            raise ValueError(f"{len(self._payload) - self._at} bytes are left over")


def _read_messages(r: _Reader) -> Messages:
    return Messages(r.number(_U64), r.number(_U32), r.list(r.unit))


def _read_prepared(r: _Reader) -> PreparedRecord:
    return PreparedRecord(r.number(_U64), r.number(_U32), r.xid(), r.number(_I64))


def _read_committed(r: _Reader) -> Committed:
    return Committed(r.number(_U64), r.number(_U32), r.key(), r.ends())


def _read_committed_again(r: _Reader) -> Committed:
    order = r.number(_U64)
    return _read_committed(r)._replace(order=order)


def _read_heuristic(r: _Reader) -> Heuristic:
    return Heuristic(r.number(_U8), r.xid(), r.number(_U64), r.number(_U32), r.ends())


def _read_decided(r: _Reader) -> Decided:
    query_id, batch_id = r.text(), r.number(_I64)
    return Decided(query_id, batch_id, r.list(r.xid), r.list(lambda: r.number(_U32)), r.list(r.branch), r.ends())


def _read_decided_contents(r: _Reader) -> Decided:
    contents = r.text()
    return _read_decided(r)._replace(contents=contents)


WRITERS: Final[Mapping[type, tuple[int, Callable[..., bytes | list[Buffer]]]]] = {
    Messages: (1, _write_messages),
    PreparedRecord: (2, _write_prepared),
    Committed: (3, _write_committed),
    RolledBack: (4, _write_serial),
    Applied: (5, _write_serial),
    Heuristic: (6, _write_heuristic),
    Forgotten: (7, _write_forgotten),
    Decided: (8, _write_decided),
    Undecided: (9, _write_undecided),
}
READERS: Final[Mapping[int, Callable[[_Reader], Record]]] = {
    1: _read_messages,
    2: _read_prepared,
    3: _read_committed,
    4: lambda r: RolledBack(r.number(_U64)),
    5: lambda r: Applied(r.number(_U64)),
    6: _read_heuristic,
    7: lambda r: Forgotten(r.xid()),
    8: _read_decided,
    9: lambda r: Undecided(r.text()),
    10: _read_decided_contents,
    11: _read_committed_again,
}


def encode(record: Record) -> tuple[int, Sequence[Buffer]]:
    """Return ``(type, parts of the payload)`` of a record. Blocks of frames are parts of their own and not copied."""
    number, write = WRITERS[type(record)]
    if isinstance(record, Decided) and record.contents is not None:
        number, write = 10, _write_decided_contents
    elif isinstance(record, Committed) and record.order is not None:
        number, write = 11, _write_committed_again
    written = write(record)
    return number, (written,) if isinstance(written, bytes) else written


def decode(kind: int, payload: Buffer) -> Record:
    """Return the record of type ``kind``. The frames of ``Messages`` are views of ``payload``, not copies.

    Raises:
        RecordDamaged: An unknown type, or the payload is not of that type.
    """
    read = READERS.get(kind)
    if read is None:
        raise RecordDamaged(f"record type {kind} is unknown to this version")
    reader = _Reader(payload)
    try:
        record = read(reader)
        reader.finish()
    except (ValueError, struct.error) as error:
        raise RecordDamaged(f"record of type {kind}: {error}") from None
    return record
