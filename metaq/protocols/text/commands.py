"""Every command and reply of the text protocol, as values.

Named tuples, not dataclasses: a broker creates one per message, and a tuple costs a third of a frozen dataclass. Tuples
of different classes may compare equal: compare the type, too.

Field conventions: ``opaque`` is the signed 32-bit number that pairs a reply with its request; ``partition`` is the
index on the broker (-1 = the broker chooses); ``checksum`` is ``None`` for the older line without that token, -1 for
"not given". A decoded topic, group or item may be any text without space and CR LF, even empty: the broker checks
names.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from metaq.model import Buffer, TransactionId

ALL_TYPES: Final = "*"
"""The message type in a ``messageType`` that stands for all messages."""

NO_OPAQUE: Final = 2147483647
"""The opaque in the broker's reply to ``version`` or ``stats`` without an opaque."""

OffsetMode = Literal["segment", "boundary", "timestamp", "ordinal", "message", "incarnation", "file"]
TransactionType = Literal[
    "BEGIN",
    "PREPARE",
    "COMMIT_ONE_PHASE",
    "COMMIT_TWO_PHASE",
    "ROLLBACK",
    "RECOVER",
    "FORGET",
    "END",
    "DECIDED",
    "DECIDED_CONTENTS",
]
"""``DECIDED``, and ``FORGET`` without a key but with a unique qualifier, are the extension ``decisions``;
``DECIDED_CONTENTS`` is ``decided-contents``."""


class Put(NamedTuple):
    """``put TOPIC PARTITION LENGTH FLAG [CHECKSUM] [TXKEY] OPAQUE`` + body."""

    topic: str
    partition: int
    body: bytes
    flag: int
    opaque: int
    checksum: int | None = -1
    transaction: TransactionId | None = None


class PutBatch(NamedTuple):
    """``mput TOPIC PARTITION LENGTH COUNT [TXKEY] OPAQUE`` + ``COUNT`` frames. Extension ``mput``.

    ``block`` is whole frames, back to back; their message ids are placeholders that the broker replaces. A block that
    was decoded into a buffer (``CommandDecoder``) is a writable view of it.
    """

    topic: str
    partition: int
    block: Buffer
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody calls on a command
    opaque: int
    transaction: TransactionId | None = None


class Get(NamedTuple):
    """``get TOPIC GROUP PARTITION OFFSET MAXSIZE OPAQUE``."""

    topic: str
    group: str
    partition: int
    offset: int
    max_bytes: int
    opaque: int


class GetFiltered(NamedTuple):
    """``fget TOPIC GROUP PARTITION OFFSET MAXSIZE TYPES OPAQUE``. Extension ``fget``.

    ``types`` are names of message types, joined by commas on the wire. ``max_bytes`` counts scanned bytes of the log,
    not of the reply, a ``Value`` whose data ``metaq.formats.message_types`` describes.
    """

    topic: str
    group: str
    partition: int
    offset: int
    max_bytes: int
    types: tuple[str, ...]
    opaque: int


class ReportTypes(NamedTuple):
    """``messageType VERSION GROUP TOPIC OPAQUE STARTTIME LENGTH`` + the types, joined by ``TYPES_JOINT``.

    The message types that the consumers of a group want of a topic; none, or ``ALL_TYPES``, means all messages.
    ``start_time`` is when the client started, in ms since 1970. Bytes that are not UTF-8 are lone surrogates in
    ``types``, for the broker to refuse.
    """

    version: str
    group: str
    topic: str
    opaque: int
    start_time: int
    types: tuple[str, ...]


class Fetch(NamedTuple):
    """``fetch VERSION TOPIC GROUP PARTITION OFFSET MAXSIZE OPAQUE STARTTIME``: a ``get`` of the reported types."""

    version: str
    topic: str
    group: str
    partition: int
    offset: int
    max_bytes: int
    opaque: int
    start_time: int


class GetOffset(NamedTuple):
    """``offset TOPIC GROUP PARTITION OFFSET OPAQUE [MODE]``.

    ``mode`` "segment" is MetaQ's own meaning; the others are extensions. "boundary": the frame boundary at or below
    ``offset``. "timestamp": the first message at or after ``offset``, read as epoch milliseconds. "ordinal": how many
    messages are before that boundary. "message": the offset of the message with number ``offset``. "incarnation": the
    partition's UUID; ``offset`` is ignored. "file" was an extension, which brokers refuse: it is decoded for clients
    of earlier versions, which would take the answer to "segment" for a place in a file.
    """

    topic: str
    group: str
    partition: int
    offset: int
    opaque: int
    mode: OffsetMode = "segment"


class Stats(NamedTuple):
    """``stats [ITEM] [OPAQUE]``; ``item`` is empty for the broker's own figures."""

    item: str
    opaque: int


class Version(NamedTuple):
    """``version [OPAQUE]``; also the heartbeat."""

    opaque: int


class Quit(NamedTuple):
    """``quit``: close this connection, no reply."""


class TransactionCommand(NamedTuple):
    """``transaction KEY SESSIONID TYPE [TIMEOUT] [UNIQUE] OPAQUE``; ``key`` is ``None`` for the wire's ``null``."""

    key: TransactionId | None
    session_id: str
    type: TransactionType
    opaque: int
    timeout_s: int | None = None
    unique: str | None = None


class Sync(NamedTuple):
    """``sync TOPIC PARTITION LENGTH FLAG MSGID [CHECKSUM] OPAQUE`` + body: master to synchronous slave."""

    topic: str
    partition: int
    body: bytes
    flag: int
    message_id: int
    opaque: int
    checksum: int | None = -1


class Copy(NamedTuple):
    """``copy TOPIC PARTITION LENGTH OFFSET SEGMENT FIRST ORDINAL INCARNATION OPAQUE`` + frames. Extension ``copy``.

    Master to synchronous slave: ``block``, whole frames as the master stores them (or none), is written at byte
    ``offset`` of the partition, in the segment that begins at ``segment_start``. The master's log starts at ``first``,
    which ``ordinal`` messages precede.
    """

    topic: str
    partition: int
    block: bytes
    offset: int
    segment_start: int
    first: int
    ordinal: int
    incarnation: str
    opaque: int


class Decide(NamedTuple):
    """``decide QUERY_ID BATCH_ID LENGTH OPAQUE`` + branch keys joined by CR LF. Extension ``decide``.

    With ``contents`` (extension ``contents``): ``decide QUERY_ID BATCH_ID LENGTH contents OPAQUE`` + the indexes of the
    keys that are branches of this broker, joined by commas, CR LF, the text, CR LF, the keys.
    """

    query_id: str
    batch_id: int
    branches: tuple[TransactionId, ...]
    opaque: int
    contents: str | None = None
    """A description of the batch's contents by the deciding client: one line, stored and returned with the decision."""
    own: tuple[int, ...] = ()


class GroupRequest(NamedTuple):
    """``group ACTION GROUP LENGTH OPAQUE`` + a JSON object. Extension ``group``; see ``group_bodies``."""

    action: str
    group: str
    body: bytes
    opaque: int


class MemberMessage(NamedTuple):
    """``pair LENGTH OPAQUE`` + a message of a pair's master to the other member. Extension ``pair``.

    It has no reply of its own. The other member's messages are values with the opaque of the connection's last one.
    """

    block: Buffer
    opaque: int


BLOCK_COMMANDS: Final = (PutBatch, MemberMessage)
"""Commands whose ``block`` may be in memory that the receiver lends and takes back."""


class Result(NamedTuple):
    """``result CODE LENGTH OPAQUE`` + UTF-8 text.

    Bytes that are not UTF-8 are lone surrogates in ``text``, and ``text.encode("utf-8", "surrogateescape")`` returns
    the exact bytes: the text of ``stats config`` is a file in any encoding.
    """

    code: int
    text: str
    opaque: int


class Value(NamedTuple):
    """``value TOTAL OPAQUE`` + a run of frames as raw bytes; the last one may be cut."""

    data: bytes
    opaque: int


class Filled(NamedTuple):
    """A value whose ``size`` bytes were received directly into the caller's buffer; see ``ReplyDecoder``."""

    size: int
    opaque: int


class Oversized(NamedTuple):
    """Not on the wire: a command whose body is above the decoder's limit. Its body is skipped.

    ``word`` is the command word; ``topic`` is empty and ``partition`` -1 for ``decide`` and ``group``. ``length`` and
    ``limit`` count bytes.
    """

    word: str
    topic: str
    partition: int
    length: int
    limit: int
    opaque: int


Command = (
    Put
    | PutBatch
    | Get
    | GetFiltered
    | Fetch
    | ReportTypes
    | GetOffset
    | Stats
    | Version
    | Quit
    | TransactionCommand
    | Sync
    | Copy
    | Decide
    | GroupRequest
    | MemberMessage
)
Reply = Result | Value
