"""Parses command lines by the rules of the Java broker.

* The line is split on single spaces. Empty tokens at the end are dropped, all others count: a doubled space shifts what
  follows. A tab is an ordinary character.
* The first byte chooses the command. ``v...`` and ``q...`` ignore the rest of the word.
* Numbers are decimal with an optional sign, and must fit 32 bits (64 for offsets, message ids and batch ids).
* ``put``, ``sync``, ``copy``, ``pair``, ``transaction``, ``mput``, ``fget`` and ``decide`` have exact token counts;
  others ignore what follows.

Any other line raises a ``ProtocolError`` with the rule and the line: the Java broker closes the connection without a
reply, and so should a caller.

Source: docs/protocol.md; the rules were observed on a Java broker. One exception: a name that is not UTF-8 is refused,
while Java silently replaces the invalid bytes and so confuses different names.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, NamedTuple, get_args

from metaq.errors import ProtocolError
from metaq.model import INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, Buffer, TransactionId, parse_transaction_id
from metaq.protocols.text.commands import (
    NO_OPAQUE,
    Command,
    Copy,
    Decide,
    Fetch,
    Get,
    GetFiltered,
    GetOffset,
    GroupRequest,
    MemberMessage,
    OffsetMode,
    Put,
    PutBatch,
    Quit,
    ReportTypes,
    Stats,
    Sync,
    TransactionCommand,
    TransactionType,
    Version,
)

NULL_KEY: Final = "null"
"""The key of a transaction line without a key."""

KEY_SEPARATOR: Final = b"\r\n"
"""Between the keys of a ``decide`` body, as in the reply to RECOVER."""

CONTENTS: Final = b"contents"
"""In the line of a ``decide`` with a description of the batch's contents."""

# 64 bits have 19 digits. Leading zeros are matched possessively, so that a line of zeros causes no backtracking.
_NUMBER: Final = re.compile(rb"([+-]?)(?=[0-9])0*+([0-9]{0,19})")
_PLAIN_DIGITS_MAX: Final = 18  # always fits 64 bits
_NUMBER_STARTS: Final = frozenset(b"%d" % digit for digit in range(10)) | {b"-"}
_INCARNATION: Final = re.compile(r"[0-9a-f]{32}")
TYPE_SEPARATOR: Final = ","
"""Between the message types of an ``fget`` line."""

TYPES_JOINT: Final = b"\x04"
"""Between the message types in the body of a ``messageType``."""

_REPLY_HEAD_BYTES_MAX: Final = 100
_TRANSACTION_TYPES: Final[dict[bytes, TransactionType]] = {name.encode(): name for name in get_args(TransactionType)}
_OFFSET_MODES: Final[dict[bytes, OffsetMode]] = {mode.encode(): mode for mode in get_args(OffsetMode)}


class Head(NamedTuple):
    """A command whose body is still to be read: ``finish(body)`` makes the command, or raises ``ProtocolError``.

    ``topic`` is empty for ``decide``, and ``partition`` -1 for commands that name none. The body is ``bytes``; a block
    may be any buffer.
    """

    word: str
    topic: str
    partition: int
    length: int
    opaque: int
    finish: Callable[[Any], Command]
    is_block: bool = False


class ReplyHead(NamedTuple):
    """A reply whose body is still to be read, without its opaque; ``code`` is ``None`` for a value."""

    code: int | None
    length: int


def parse_command(line: bytes) -> Command | Head:
    """Parse a line (without CRLF); return its command, or its ``Head`` if a body follows.

    Raises:
        ProtocolError: The line is not a command, or announces a body of negative length.
    """
    tokens = line.rstrip(b" ").split(b" ")
    try:
        parser = _EXACT_WORDS.get(tokens[0]) or _parser_of_other(tokens[0])
        return parser(tokens)
    except ValueError as error:
        raise ProtocolError(str(error), line) from None


def _parser_of_other(word: bytes) -> Callable[[list[bytes]], Command | Head]:
    if word in _REPLY_WORDS:
        raise ValueError("a reply where a command is expected")
    if word[:1] == b"v":
        return _version
    if word[:1] == b"q":
        return _quit
    raise ValueError("unknown command" if word else "a line must start with a command word")


def _put(tokens: list[bytes]) -> Head:
    """``put TOPIC PARTITION LENGTH FLAG [CHECKSUM] [TXKEY] OPAQUE``; with one of the two, a digit or dash decides."""
    _count_must_be("put", tokens, 6, 8)
    topic, partition, length, flag = _put_fields(tokens)
    opaque = _int32("opaque", tokens[-1])
    optional = tokens[5:-1]
    checksum, key = None, None
    if len(optional) == 2 or (optional and optional[0][:1] in _NUMBER_STARTS):
        checksum = _int32("checksum", optional.pop(0))
    if optional:
        key = _key(optional[0])

    def finish(body: bytes) -> Put:
        return Put(topic, partition, body, flag, opaque, checksum, key)

    return Head("put", topic, partition, length, opaque, finish)


def _put_fields(tokens: list[bytes]) -> tuple[str, int, int, int]:
    return _name("topic", tokens[1]), _int32("partition", tokens[2]), _length(tokens[3]), _int32("flag", tokens[4])


@lru_cache(maxsize=8192)
def usual_put_head(head: bytes) -> tuple[str, int, int, int] | None:
    """Return topic, partition, length and flag of ``put TOPIC PARTITION LENGTH FLAG``; ``None`` for any other line.

    Heads repeat (few topics and partitions, similar lengths), so most are found in the cache. Arguments stay in memory
    for a while: pass short heads only.
    """
    tokens = head.split(b" ")
    if len(tokens) != 5 or tokens[0] != b"put":
        return None
    try:
        return _put_fields(tokens)
    except ValueError:
        return None


def _put_batch(tokens: list[bytes]) -> Head:
    """``mput TOPIC PARTITION LENGTH COUNT [TXKEY] OPAQUE``."""
    _count_must_be("mput", tokens, 6, 7)
    topic, partition, length = _name("topic", tokens[1]), _int32("partition", tokens[2]), _length(tokens[3])
    count, opaque = _int32("count", tokens[4]), _int32("opaque", tokens[-1])
    if count < 1:
        raise ValueError(f"count {count}: expected 1 or more")
    key = _key(tokens[5]) if len(tokens) == 7 else None

    def finish(block: Buffer) -> PutBatch:
        return PutBatch(topic, partition, block, count, opaque, key)

    return Head("mput", topic, partition, length, opaque, finish, is_block=True)


def _sync(tokens: list[bytes]) -> Head:
    """``sync TOPIC PARTITION LENGTH FLAG MSGID [CHECKSUM] OPAQUE``."""
    _count_must_be("sync", tokens, 7, 8)
    topic, partition, length = _name("topic", tokens[1]), _int32("partition", tokens[2]), _length(tokens[3])
    flag, message_id, opaque = _int32("flag", tokens[4]), _int64("message id", tokens[5]), _int32("opaque", tokens[-1])
    checksum = _int32("checksum", tokens[6]) if len(tokens) == 8 else None

    def finish(body: bytes) -> Sync:
        return Sync(topic, partition, body, flag, message_id, opaque, checksum)

    return Head("sync", topic, partition, length, opaque, finish)


def _copy(tokens: list[bytes]) -> Head:
    """``copy TOPIC PARTITION LENGTH OFFSET SEGMENT FIRST ORDINAL INCARNATION OPAQUE``."""
    _count_must_be("copy", tokens, 10, 10)
    topic, partition, length = _name("topic", tokens[1]), _int32("partition", tokens[2]), _length(tokens[3])
    offset, segment_start, first, ordinal = (_number("number", token, 0, INT64_MAX) for token in tokens[4:8])
    incarnation, opaque = _name("incarnation", tokens[8]), _int32("opaque", tokens[9])
    if not _INCARNATION.fullmatch(incarnation):
        raise ValueError(f"incarnation {_shown(tokens[8])}: expected 32 hex digits")

    def finish(block: bytes) -> Copy:
        return Copy(topic, partition, block, offset, segment_start, first, ordinal, incarnation, opaque)

    return Head("copy", topic, partition, length, opaque, finish)


def _decide(tokens: list[bytes]) -> Head:
    """``decide QUERY_ID BATCH_ID LENGTH [contents] OPAQUE``."""
    _count_must_be("decide", tokens, 5, 6)
    query_id, batch_id = _name("query id", tokens[1]), _int64("batch id", tokens[2])
    length, opaque = _length(tokens[3]), _int32("opaque", tokens[-1])
    if not query_id:
        raise ValueError("empty query id")
    if len(tokens) == 6 and tokens[4] != CONTENTS:
        raise ValueError(f"decide: expected contents, not {_shown(tokens[4])}")
    with_contents = len(tokens) == 6

    def finish(body: bytes) -> Decide:
        try:
            own, contents, keys = _contents(body) if with_contents else ((), None, body)
            branches = tuple(map(_key, keys.split(KEY_SEPARATOR))) if keys else ()
            if own and own[-1] >= len(branches):
                raise ValueError(f"position {own[-1]} of {len(branches)} branches")
            return Decide(query_id, batch_id, branches, opaque, contents, own)
        except ValueError as error:
            raise ProtocolError(f"branches of a decision: {error}", body) from None

    return Head("decide", "", -1, length, opaque, finish)


def _contents(body: bytes) -> tuple[tuple[int, ...], str, bytes]:
    """Return the parts of a decision with contents: indexes of the broker's own branches, the text, the keys."""
    positions, _, rest = body.partition(KEY_SEPARATOR)
    text, _, keys = rest.partition(KEY_SEPARATOR)
    own = tuple(_number("position", token, 0, INT32_MAX) for token in positions.split(b",")) if positions else ()
    if any(later <= earlier for earlier, later in pairwise(own)):
        raise ValueError("the positions of this broker's branches are not in ascending order")
    return own, text.decode(), keys


def _get(tokens: list[bytes]) -> Get:
    """``get TOPIC GROUP PARTITION OFFSET MAXSIZE OPAQUE``."""
    _count_must_be("get", tokens, 7)
    topic, group = _name("topic", tokens[1]), _name("group", tokens[2])
    # A broker parses this line most often, so its numbers are checked together.
    partition, offset, bytes_max, opaque = numbers = tokens[3:7]
    if _usual(partition, bytes_max, opaque) and len(offset) <= _PLAIN_DIGITS_MAX and offset.isdigit():
        return Get(topic, group, *map(int, numbers))
    places = _int32("partition", partition), _int64("offset", offset), _int32("maximal size", bytes_max)
    return Get(topic, group, *places, _int32("opaque", opaque))


def _get_filtered(tokens: list[bytes]) -> GetFiltered:
    """``fget TOPIC GROUP PARTITION OFFSET MAXSIZE TYPES OPAQUE``; the broker checks TYPES."""
    _count_must_be("fget", tokens, 8, 8)
    topic, group, partition = _name("topic", tokens[1]), _name("group", tokens[2]), _int32("partition", tokens[3])
    offset, bytes_max = _int64("offset", tokens[4]), _int32("maximal size", tokens[5])
    types = tuple(_name("message types", tokens[6]).split(TYPE_SEPARATOR))
    return GetFiltered(topic, group, partition, offset, bytes_max, types, _int32("opaque", tokens[7]))


def _report_types(tokens: list[bytes]) -> Head:
    """``messageType VERSION GROUP TOPIC OPAQUE STARTTIME LENGTH``; blank types are left out, the broker checks all."""
    _count_must_be("messageType", tokens, 7)
    version, group, topic = _name("version", tokens[1]), _name("group", tokens[2]), _name("topic", tokens[3])
    opaque, start_time, length = _int32("opaque", tokens[4]), _int64("start time", tokens[5]), _length(tokens[6])

    def finish(body: bytes) -> ReportTypes:
        given = (each.decode("utf-8", "surrogateescape") for each in body.split(TYPES_JOINT))
        return ReportTypes(version, group, topic, opaque, start_time, tuple(each for each in given if each.strip()))

    return Head("messageType", topic, -1, length, opaque, finish)


def _fetch(tokens: list[bytes]) -> Fetch:
    """``fetch VERSION TOPIC GROUP PARTITION OFFSET MAXSIZE OPAQUE STARTTIME``."""
    _count_must_be("fetch", tokens, 9)
    version, topic, group = _name("version", tokens[1]), _name("topic", tokens[2]), _name("group", tokens[3])
    partition, offset, bytes_max = (
        _int32("partition", tokens[4]),
        _int64("offset", tokens[5]),
        _int32("maximal size", tokens[6]),
    )
    opaque, start_time = _int32("opaque", tokens[7]), _int64("start time", tokens[8])
    return Fetch(version, topic, group, partition, offset, bytes_max, opaque, start_time)


def _offset(tokens: list[bytes]) -> GetOffset:
    """``offset TOPIC GROUP PARTITION OFFSET OPAQUE [MODE]``; other modes are ignored."""
    _count_must_be("offset", tokens, 6)
    topic, group, partition = _name("topic", tokens[1]), _name("group", tokens[2]), _int32("partition", tokens[3])
    mode: OffsetMode = _OFFSET_MODES.get(tokens[6], "segment") if len(tokens) > 6 else "segment"
    return GetOffset(topic, group, partition, _int64("offset", tokens[4]), _int32("opaque", tokens[5]), mode)


def _group(tokens: list[bytes]) -> Head:
    """``group ACTION GROUP LENGTH OPAQUE``; the broker checks ACTION."""
    _count_must_be("group", tokens, 5, 5)
    action, group = _name("action", tokens[1]), _name("group", tokens[2])
    length, opaque = _length(tokens[3]), _int32("opaque", tokens[4])

    def finish(body: bytes) -> GroupRequest:
        return GroupRequest(action, group, body, opaque)

    return Head("group", "", -1, length, opaque, finish)


def _member_message(tokens: list[bytes]) -> Head:
    """``pair LENGTH OPAQUE``."""
    _count_must_be("pair", tokens, 3, 3)
    length, opaque = _length(tokens[1]), _int32("opaque", tokens[2])

    def finish(block: Buffer) -> MemberMessage:
        return MemberMessage(block, opaque)

    return Head("pair", "", -1, length, opaque, finish, is_block=True)


def _stats(tokens: list[bytes]) -> Stats:
    """``stats [ITEM] [OPAQUE]``: the second token is always the item, so ``stats 1`` asks for an item called 1."""
    item = _name("item", tokens[1]) if len(tokens) > 1 else ""
    return Stats(item, _int32("opaque", tokens[2]) if len(tokens) > 2 else NO_OPAQUE)


def _version(tokens: list[bytes]) -> Version:
    return Version(_int32("opaque", tokens[1]) if len(tokens) > 1 else NO_OPAQUE)


def _quit(_tokens: list[bytes]) -> Quit:
    return Quit()


def _transaction(tokens: list[bytes]) -> TransactionCommand:
    """``transaction KEY SESSIONID TYPE [TIMEOUT] [UNIQUE] OPAQUE``; with one of the two, all digits mean TIMEOUT."""
    _count_must_be("transaction", tokens, 5, 7)
    key = None if tokens[1] == NULL_KEY.encode() else _key(tokens[1])
    type_ = _TRANSACTION_TYPES.get(tokens[3])
    if type_ is None:
        raise ValueError(
            f"transaction type {_shown(tokens[3])}: expected one of {', '.join(get_args(TransactionType))}"
        )
    optional = tokens[4:-1]
    timeout_s, unique = None, None
    if len(optional) == 2 or (optional and optional[0].isdigit()):
        timeout_s = _int32("timeout", optional.pop(0))
    if optional:
        unique = _name("unique qualifier", optional[0])
        if not unique:
            raise ValueError("empty unique qualifier")
    session_id, opaque = _name("session id", tokens[2]), _int32("opaque", tokens[-1])
    return TransactionCommand(key, session_id, type_, opaque, timeout_s, unique)


_EXACT_WORDS: Final[dict[bytes, Callable[[list[bytes]], Command | Head]]] = {
    b"put": _put,
    b"mput": _put_batch,
    b"sync": _sync,
    b"copy": _copy,
    b"decide": _decide,
    b"group": _group,
    b"pair": _member_message,
    b"get": _get,
    b"fget": _get_filtered,
    b"fetch": _fetch,
    b"messageType": _report_types,
    b"offset": _offset,
    b"stats": _stats,
    b"transaction": _transaction,
}
_REPLY_WORDS: Final = frozenset((b"result", b"value", b"data"))


def parse_reply(line: bytes) -> tuple[ReplyHead, int]:
    """Return head and opaque of ``result CODE LENGTH OPAQUE`` or ``value TOTAL OPAQUE``.

    Raises:
        ProtocolError: The line is neither.
    """
    head, _, opaque = line.rstrip(b" ").rpartition(b" ")
    try:
        if len(head) > _REPLY_HEAD_BYTES_MAX:  # keep it out of the cache
            raise ValueError("reply line too long")
        return _reply_head(head), _int32("opaque", opaque)
    except ValueError as error:
        raise ProtocolError(str(error), line) from None


@lru_cache(maxsize=4096)
def _reply_head(head: bytes) -> ReplyHead:
    tokens = head.split(b" ")
    if tokens[0] == b"result":
        _count_must_be("result", tokens, 3, 3)
        return ReplyHead(_int32("code", tokens[1]), _length(tokens[2]))
    if tokens[0] in (b"value", b"data"):
        _count_must_be("value", tokens, 2, 2)
        return ReplyHead(None, _length(tokens[1]))
    raise ValueError("a reply must be: result CODE LENGTH OPAQUE, or: value TOTAL OPAQUE")


def _count_must_be(word: str, tokens: list[bytes], least: int, most: int | None = None) -> None:
    if len(tokens) < least or (most is not None and len(tokens) > most):
        wanted = f"{least} or more" if most is None else str(least) if least == most else f"{least} to {most}"
        raise ValueError(f"{word} with {len(tokens)} tokens: expected {wanted}")


def _name(what: str, token: bytes) -> str:
    try:
        return token.decode()
    except UnicodeDecodeError:
        raise ValueError(f"{what} {_shown(token)} is not UTF-8") from None


def _number(what: str, token: bytes, least: int, most: int) -> int:
    if len(token) <= _PLAIN_DIGITS_MAX and token.isdigit():  # the usual case, faster than the pattern
        value = int(token)
        if least <= value <= most:
            return value
    # int() alone would accept "1_000" and surrounding blanks, and be slow for a million digits.
    match = _NUMBER.fullmatch(token)
    if match is not None:
        digits = int(match[2] or b"0")
        value = -digits if match[1] == b"-" else digits
        if least <= value <= most:
            return value
    raise ValueError(f"{what} {_shown(token)}: expected a number of {least}..{most}")


def _usual(one: bytes, two: bytes, three: bytes) -> bool:
    """Return whether three tokens are plain digits that certainly fit 32 bits."""
    short = 0 < len(one) < 10 and 0 < len(two) < 10 and 0 < len(three) < 10
    return short and (one + two + three).isdigit()


def _int32(what: str, token: bytes) -> int:
    return _number(what, token, INT32_MIN, INT32_MAX)


def _int64(what: str, token: bytes) -> int:
    return _number(what, token, INT64_MIN, INT64_MAX)


def _length(token: bytes) -> int:
    return _number("length", token, 0, INT32_MAX)


def _key(token: bytes) -> TransactionId:
    return parse_transaction_id(_name("transaction key", token))


def _shown(token: bytes) -> str:
    return repr(token[:40])
