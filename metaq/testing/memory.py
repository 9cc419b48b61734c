"""A broker in memory, behind the client's transport: segments, offsets and refusals as in MetaQ, no disk.

It has the behaviour that clients depend on: a get returns a limited raw slice of one segment, ``offset`` the start of a
segment, 301 and 404 follow MetaQ's rules, and replies may arrive in any order. Without ``extensions`` it behaves like a
Java broker. ``kill`` and ``start`` cut and restore all connections; ``before_command`` runs before each command, so a
test can kill the broker at a chosen command: it takes effect and its reply is lost.

Source: docs/protocol.md, docs/log-format.md. Not here: decisions, closed partitions, and time to fsync.
"""

from __future__ import annotations

from collections.abc import Callable

from metaq.backends.metaq.pair_members import PairFacts
from metaq.errors import ConnectionFailed, DeadlineExceeded, ProtocolError
from metaq.formats.checksum import checksum
from metaq.formats.frames import encode_frame, frame_bytes, walk, whole_bytes
from metaq.formats.message_id import IdRange
from metaq.formats.message_types import encode_types, select
from metaq.model import INT64_MAX, Address, Buffer, TransactionId
from metaq.net.transport import Stream
from metaq.protocols.text.commands import (
    Command,
    Get,
    GetFiltered,
    GetOffset,
    Put,
    PutBatch,
    Quit,
    Reply,
    Result,
    Stats,
    TransactionCommand,
    Value,
    Version,
)
from metaq.protocols.text.decode import BODY_BYTES_MAX, NEED_DATA, CommandDecoder
from metaq.protocols.text.encode import encode
from metaq.protocols.text.extensions import (
    EXT_BOUNDARY,
    EXT_FILTER,
    EXT_INCARNATION,
    EXT_ORDINAL,
    EXT_PUT_BATCH,
    EXT_TIMESTAMP,
    version_text,
)
from metaq.protocols.text.pair import pair_lines, with_pair
from metaq.statuses import NOT_MASTER
from metaq.testing.manual_clock import ManualClock
from metaq.testing.memory_partition import MemoryPartition
from metaq.testing.memory_transactions import MemoryTransactions

_EVERYTHING = frozenset({EXT_BOUNDARY, EXT_FILTER, EXT_INCARNATION, EXT_ORDINAL, EXT_PUT_BATCH, EXT_TIMESTAMP})


class MemoryBroker:
    """The state behind all connections. ``topics`` maps each accepted topic to its number of partitions.

    The name ``*`` matches all other topics. Message ids count commands, unless ``reserve_ids`` is replaced.
    """

    def __init__(
        self,
        topics: dict[str, int],
        *,
        broker_id: int = 0,
        extensions: frozenset[str] = _EVERYTHING,
        segment_bytes_max: int = 1 << 30,
        transfer_bytes_max: int = 1 << 20,
        message_bytes_max: int = BODY_BYTES_MAX,
        slave: bool = False,
    ) -> None:
        self.topics, self.broker_id, self.extensions, self.slave = topics, broker_id, extensions, slave
        self.segment_bytes_max, self.transfer_bytes_max = segment_bytes_max, transfer_bytes_max
        self.message_bytes_max = message_bytes_max
        self.partitions: dict[tuple[str, int], MemoryPartition] = {}
        self.before_command: Callable[[Command], None] = lambda command: None
        self.shuffle: Callable[[list[bytes]], None] = lambda replies: None
        self.reserve_ids: Callable[[int], IdRange] = lambda count: IdRange.starting_at(len(self.commands), count)
        self.transactions = MemoryTransactions(lambda topic, index, frames: self.partition(topic, index).append(frames))
        self.commands: list[Command] = []
        self.incarnation = 1
        self.running = True
        self.pair: PairFacts | None = None
        """Set for a member of a pair; one that is not the master answers ``stats`` and ``version`` only."""

    def kill(self) -> None:
        """Cut all connections and refuse new ones. Messages are kept."""
        self.running = False

    def start(self) -> None:
        """Accept new connections again. Of transactions, only prepared ones are kept."""
        self.running, self.incarnation = True, self.incarnation + 1
        self.transactions.restart()

    def clear(self) -> None:
        """Forget all messages, transactions and recorded commands."""
        self.partitions.clear()
        self.transactions.clear()
        self.commands.clear()

    def partition(self, topic: str, index: int) -> MemoryPartition:
        """Return the store of a partition; created on first use."""
        return self.partitions.setdefault((topic, index), MemoryPartition(self.segment_bytes_max))

    def recreate(self, topic: str, index: int) -> MemoryPartition:
        """Delete a partition if it exists, and create it again: empty, with a new incarnation."""
        self.partitions.pop((topic, index), None)
        return self.partition(topic, index)

    def disconnected(self, connection: object) -> None:
        """A connection has ended: drop its local transactions."""
        self.transactions.connection_lost(connection)

    def answer(self, command: Command) -> Reply | None:
        """The reply, or ``None`` where the broker closes the connection without one."""
        self._note(command)
        if self._is_follower and not isinstance(command, Stats | Version):
            return self._not_master(command)
        match command:
            case Get():
                return self._get(command)
            case GetFiltered() if EXT_FILTER in self.extensions:
                return self._get_filtered(command)
            case Put():
                return self._put(command)
            case PutBatch() if EXT_PUT_BATCH in self.extensions:
                return self._put_batch(command)
            case GetOffset():
                return self._offset(command)
            case Version(opaque):
                version = version_text("0", sorted(self.extensions)) if self.extensions else "1.4.6.3-SNAPSHOT"
                return Result(200, version if self.pair is None else with_pair(version, self.pair.other), opaque)
            case Stats(item, opaque):
                return Result(200, self._stats(item), opaque)
            case _:
                return None

    def handle(self, command: Command, connection: object) -> bytes | None:
        """Return the bytes of the reply, ``b""`` if there is none; ``None``: close the connection."""
        match command:
            case Quit():
                return None
            case TransactionCommand() if not self._is_follower:
                self._note(command)
                step = self.transactions.step(command, connection)
                return b"" if step is None else encode(step)
            case Put(transaction=key) | PutBatch(transaction=key) if key is not None and not self._is_follower:
                self._note(command)
                return encode(self._put_in_transaction(command, key, connection))
        reply = self.answer(command)
        return None if reply is None else encode(reply)

    @property
    def _is_follower(self) -> bool:
        return self.pair is not None and not self.pair.is_master

    def _not_master(self, command: Command) -> Reply | None:
        return None if isinstance(command, Quit) else Result(403, f"{NOT_MASTER}ask the other one", command.opaque)

    def _note(self, command: Command) -> None:
        self.commands.append(command)
        self.before_command(command)

    def _get(self, get: Get) -> Reply:
        store = self.partitions.get((get.topic, get.partition))
        if store is None:
            return _no_store(get)
        if get.max_bytes <= 0:
            return Result(400, f"Bad request,invalid max size:{get.max_bytes}", get.opaque)
        if get.offset < store.start:
            return Result(301, str(store.start), get.opaque)
        if get.offset >= store.end:
            if get.offset == INT64_MAX:
                return Result(301, str(store.end), get.opaque)
            return Result(404, f"Could not find message at position {get.offset}", get.opaque)
        start, content = store.segment_at(get.offset)
        at = get.offset - start
        return Value(bytes(content[at : at + min(get.max_bytes, self.transfer_bytes_max)]), get.opaque)

    def _get_filtered(self, get: GetFiltered) -> Reply:
        try:
            types = encode_types(get.types)
        except ValueError as fault:
            return Result(400, str(fault), get.opaque)
        plain = Get(get.topic, get.group, get.partition, get.offset, get.max_bytes, get.opaque)
        found = self._get(plain)
        if not isinstance(found, Value):
            return found
        if not whole_bytes(found.data):  # the first frame is larger: return it whole
            start, content = self.partitions[get.topic, get.partition].segment_at(get.offset)
            at = get.offset - start
            end = at + frame_bytes(content, at)
            found = Value(bytes(content[at:end]), get.opaque)
        selection = select(found.data, get.offset, types)
        if selection.next_offset == get.offset:
            return Result(500, f"The message at {get.offset} is damaged: {selection.fault}", get.opaque)
        return Value(selection.encode(), get.opaque)

    def _offset(self, query: GetOffset) -> Reply:
        store = self.partitions.get((query.topic, query.partition))
        if store is None:
            return _no_store(query)
        return Result(200, str(self._position(store, query)), query.opaque)

    def _position(self, store: MemoryPartition, query: GetOffset) -> int | str:
        """Answer in the requested mode if it is supported; otherwise as a Java broker would."""
        match query.mode:
            case "boundary" if EXT_BOUNDARY in self.extensions:
                return store.boundary(query.offset)
            case "ordinal" if EXT_ORDINAL in self.extensions:
                return store.ordinal(query.offset)
            case "message" if EXT_ORDINAL in self.extensions:
                return store.offset_of_message(query.offset)
            case "timestamp" if EXT_TIMESTAMP in self.extensions:
                return store.first_at(query.offset)
            case "incarnation" if EXT_INCARNATION in self.extensions:
                return store.incarnation
            case _:
                offset = min(max(query.offset, store.start), store.end)
                return store.segment_at(offset)[0] if offset < store.end else offset

    def _put(self, put: Put) -> Reply:
        refusal = self._refusal(put)
        if refusal is None and put.checksum not in (None, -1, checksum(put.body)):
            refusal = "Checksum failure,message may be corrupted when transfering on networking."
        if refusal is not None:
            return Result(500, f"Put message to {put.topic}-{put.partition} failed.Detail:{refusal}", put.opaque)
        return self._appended(put, self.reserve_ids(1))

    def _put_batch(self, batch: PutBatch) -> Reply:
        refusal = self._refusal(batch)
        if refusal is None and sum(1 for _ in walk(batch.block)) != batch.count:
            refusal = f"the block has not {batch.count} frames"
        if refusal is not None:
            return Result(500, f"Put message to {batch.topic}-{batch.partition} failed.Detail:{refusal}", batch.opaque)
        return self._appended(batch, self.reserve_ids(batch.count))

    def _put_in_transaction(self, put: Put | PutBatch, key: TransactionId, connection: object) -> Reply:
        refusal = self._refusal(put)
        ids = self.reserve_ids(put.count if isinstance(put, PutBatch) else 1)
        if refusal is None:
            frames = self._numbered(put, ids)
            refusal = self.transactions.put(key, connection, put.topic, put.partition, frames)
        if refusal is not None:
            return Result(500, refusal, put.opaque)
        return Result(200, f"{ids.first} {put.partition} -1", put.opaque)

    @staticmethod
    def _numbered(put: Put | PutBatch, ids: IdRange) -> bytes:
        """The frames of a put, with their ids."""
        if isinstance(put, Put):
            return encode_frame(ids.first, put.flag, put.body)
        frames = zip(ids, walk(put.block), strict=True)
        return b"".join(encode_frame(one_id, frame.flag, frame.body, frame.checksum) for one_id, frame in frames)

    def _refusal(self, put: Put | PutBatch) -> str | None:
        count = self.topics.get(put.topic, self.topics.get("*"))
        if count is None:
            return f"The server do not accept topic {put.topic}"
        if not 0 <= put.partition < count:
            return f"wrong partition {put.partition}"
        longest = len(put.body) if isinstance(put, Put) else max((len(one.body) for one in walk(put.block)), default=0)
        if longest > self.message_bytes_max:
            return f"message of {longest} bytes is longer than {self.message_bytes_max} bytes (maxMessageSize)"
        return None

    def _appended(self, put: Put | PutBatch, ids: IdRange) -> Reply:
        offset = self.partition(put.topic, put.partition).append(self._numbered(put, ids))
        return Result(200, f"{ids.first} {put.partition} {offset}", put.opaque)

    def _stats(self, item: str) -> str:
        stores = sorted(self.partitions.items())
        match item:
            case "":
                slave = self.slave or self._is_follower
                lines = ["pid 1", f"broker_id {self.broker_id}", "port 8123", f"slave {str(slave).lower()}"]
                lines += [] if self.pair is None else pair_lines(self.pair.other, self.pair.epoch)
            case "offsets":
                lines = [f"{t} part {p} min_offset {s.start} max_offset {s.end}" for (t, p), s in stores]
            case "incarnations" if EXT_INCARNATION in self.extensions:
                lines = [f"{t} {p} {s.incarnation} {s.start} {s.end}" for (t, p), s in stores]
            case "topics":
                stored = sorted({topic for topic, _ in self.partitions})
                lines = [f"{t} partitions {sum(1 for (s, _), _ in stores if s == t)} message_count 0" for t in stored]
                lines += [f"{t} *Empty*" for t in self.topics if t not in stored]
            case "config":
                sections = [f"[topic={t}]\nnumPartitions={n}\n" for t, n in self.topics.items()]
                usual = self.topics.get("*", 1)
                return "".join([f"[system]\nbrokerId={self.broker_id}\nnumPartitions={usual}\n", *sections])
            case _:
                lines = [item, "resultCode 1"]
        return "".join(f"{line}\r\n" for line in ["STATS", *lines, "END"])


def _no_store(command: Get | GetOffset) -> Result:
    return Result(404, f"The topic `{command.topic}` in partition `{command.partition}` is not exists", command.opaque)


class MemoryStream:
    """One connection to a ``MemoryBroker``."""

    def __init__(self, address: Address, broker: MemoryBroker, clock: ManualClock) -> None:
        self._address, self._broker, self._clock = address, broker, clock
        self._incarnation = broker.incarnation
        self._decoder = CommandDecoder()
        self._replies: list[bytes] = []
        self._incoming = b""
        self._ended = self._closed = False

    def send(self, data: Buffer, timeout_s: float, *, more: bool = False) -> None:
        self._check("send")
        self._decoder.receive_data(bytes(data))
        try:
            while (command := self._decoder.next_command()) is not NEED_DATA:
                self._take(command)  # type: ignore[arg-type]  # Oversized needs a limit that is not set here
        except ProtocolError:
            self._ended = True

    def recv(self, bytes_max: int, timeout_s: float) -> bytes:
        self._check("receive")
        if not self._incoming and self._replies:
            self._broker.shuffle(self._replies)
            self._incoming, self._replies = b"".join(self._replies), []
        if not self._incoming and not self._ended:
            self._clock.advance(timeout_s)
            raise DeadlineExceeded(self._address, "receive", timeout_s)
        chunk, self._incoming = self._incoming[:bytes_max], self._incoming[bytes_max:]
        return chunk

    def recv_into(self, buffer: memoryview, timeout_s: float) -> int:
        data = self.recv(len(buffer), timeout_s)
        buffer[: len(data)] = data
        return len(data)

    def readable(self) -> bool:
        return bool(self._closed or self._ended or self._cut or self._incoming or self._replies)

    def close(self) -> None:
        self._closed = True
        self._broker.disconnected(self)

    @property
    def _cut(self) -> bool:
        return not self._broker.running or self._incarnation != self._broker.incarnation

    def _check(self, action: str) -> None:
        if self._closed or self._cut:
            raise ConnectionFailed(self._address, action, "Connection reset by peer")

    def _take(self, command: Command) -> None:
        reply = self._broker.handle(command, self)
        if reply is None:
            self._ended = True
        elif reply and not self._cut and not self._ended:
            self._replies.append(reply)


class MemoryTransport:
    """Connects to brokers in memory by address."""

    def __init__(self, brokers: dict[Address, MemoryBroker], clock: ManualClock | None = None) -> None:
        self.brokers = brokers
        self.clock = clock or ManualClock()
        self.connections = 0

    def connect_tcp(self, address: Address, timeout_s: float) -> Stream:
        broker = self.brokers.get(address)
        if broker is None or not broker.running:
            raise ConnectionFailed(address, "connect", "Connection refused")
        self.connections += 1
        return MemoryStream(address, broker, self.clock)
