"""Encodes commands and replies.

A field that the other side would read differently raises a ``ValueError`` with its name and value.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, get_args

from metaq.model import INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, Buffer, TransactionId, parse_transaction_id
from metaq.protocols.text.commands import (
    ALL_TYPES,
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
    Reply,
    ReportTypes,
    Result,
    Stats,
    Sync,
    TransactionCommand,
    TransactionType,
    Value,
    Version,
)
from metaq.protocols.text.lines import CONTENTS, KEY_SEPARATOR, NULL_KEY, TYPE_SEPARATOR, TYPES_JOINT

TOKEN_BYTES_MAX: Final = 20_000
"""Longest name or key: three of them fit in the longest line that a decoder accepts."""

_TRANSACTION_TYPES: Final = frozenset(get_args(TransactionType))
_OFFSET_MODES: Final = frozenset(get_args(OffsetMode))


def encode(message: Command | Reply) -> bytes:
    """Return the bytes of a command or a reply.

    Raises:
        ValueError: A field cannot be encoded: an empty name or one with a blank, a number that does not fit, and so on.
        TypeError: ``message`` is neither a command nor a reply.
    """
    encoder = _ENCODERS.get(type(message))
    if encoder is None:
        raise TypeError(f"{type(message).__name__} is neither a command nor a reply")
    return encoder(message)


def encode_member_line(total: int, opaque: int) -> bytes:
    """Return the line of a ``pair`` command alone, for a sender whose ``total`` bytes are in several parts."""
    return b"pair %d %d\r\n" % (_int32("length", total, 0), _int32("opaque", opaque))


def encode_value_line(total: int, opaque: int) -> bytes:
    """Return the line of a ``value`` reply alone, for a sender whose ``total`` bytes go from file to socket."""
    if not (0 <= total <= INT32_MAX and INT32_MIN <= opaque <= INT32_MAX):
        _int32("total", total, 0), _int32("opaque", opaque)  # one of them raises the error
    return b"value %d %d\r\n" % (total, opaque)


def _put(put: Put) -> bytes:
    topic, partition, body, flag, opaque, checksum, transaction = put
    _int32s(partition, flag, opaque)
    key = b"" if transaction is None else b"%b " % _key(transaction)
    given = b"" if checksum is None else b"%d " % _int32("checksum", checksum)
    head = (_name("topic", topic), partition, _length(body), flag, given, key, opaque)
    return b"".join((b"put %b %d %d %d %b%b%d\r\n" % head, body))


def encode_put_batch_line(batch: PutBatch) -> bytes:
    """Return the line of an ``mput`` alone, for a sender that writes the block without a copy.

    Raises:
        ValueError: As ``encode``.
    """
    topic, partition, block, count, opaque, transaction = batch
    _int32s(partition, opaque)
    key = b"" if transaction is None else b"%b " % _key(transaction)
    head = (_name("topic", topic), partition, _length(block), _int32("count", count, 1), key, opaque)
    return b"mput %b %d %d %d %b%d\r\n" % head


def _put_batch(batch: PutBatch) -> bytes:
    return b"".join((encode_put_batch_line(batch), batch.block))


def _sync(sync: Sync) -> bytes:
    topic, partition, body, flag, message_id, opaque, checksum = sync
    _int32s(partition, flag, opaque)
    given = b"" if checksum is None else b"%d " % _int32("checksum", checksum)
    head = (_name("topic", topic), partition, _length(body), flag, _int64("message id", message_id), given, opaque)
    return b"".join((b"sync %b %d %d %d %d %b%d\r\n" % head, body))


def _copy(copy: Copy) -> bytes:
    topic, partition, block, offset, segment_start, first, ordinal, incarnation, opaque = copy
    _int32s(partition, opaque)
    for number in (offset, segment_start, first, ordinal):
        _int64("offset or count", number)
    numbers = partition, _length(block), offset, segment_start, first, ordinal
    head = (_name("topic", topic), *numbers, _name("incarnation", incarnation), opaque)
    return b"".join((b"copy %b %d %d %d %d %d %d %b %d\r\n" % head, block))


def _decide(decide: Decide) -> bytes:
    body, form = KEY_SEPARATOR.join(map(_key, decide.branches)), b""
    if decide.own and (decide.contents is None or decide.own[-1] >= len(decide.branches)):
        raise ValueError(f"own branches {decide.own}: expected positions in the branches, with contents")
    if decide.contents is not None:
        own = ",".join(map(str, decide.own)).encode()
        body, form = KEY_SEPARATOR.join((own, _line("contents", decide.contents), body)), CONTENTS + b" "
    name, batch_id = _name("query id", decide.query_id), _int64("batch id", decide.batch_id)
    return b"decide %b %d %d %b%d\r\n%b" % (name, batch_id, _length(body), form, _int32("opaque", decide.opaque), body)


def _get(get: Get) -> bytes:
    topic, group, partition, offset, bytes_max, opaque = get
    _int32s(partition, bytes_max, opaque)
    names = _name("topic", topic), _name("group", group)
    return b"get %b %b %d %d %d %d\r\n" % (*names, partition, _int64("offset", offset), bytes_max, opaque)


def _get_filtered(get: GetFiltered) -> bytes:
    topic, group, partition, offset, bytes_max, types, opaque = get
    _int32s(partition, bytes_max, opaque)
    if any(TYPE_SEPARATOR in name for name in types):
        raise ValueError(f"message types {types!r}: expected names without commas")
    names = _name("topic", topic), _name("group", group)
    joined = _name("message types", TYPE_SEPARATOR.join(types))
    return b"fget %b %b %d %d %d %b %d\r\n" % (*names, partition, _int64("offset", offset), bytes_max, joined, opaque)


def _report_types(report: ReportTypes) -> bytes:
    version, group, topic, opaque, start_time, types = report
    encoded = [each.encode("utf-8", "surrogateescape") for each in types]
    for name, each in zip(types, encoded, strict=True):
        if not name.strip() or TYPES_JOINT in each:
            raise ValueError(f"message type {name[:80]!r}: expected a name that is not blank, without byte 0x04")
    body = TYPES_JOINT.join(encoded) or ALL_TYPES.encode()
    names = _name("version", version), _name("group", group), _name("topic", topic)
    numbers = _int32("opaque", opaque), _int64("start time", start_time), _length(body)
    return b"messageType %b %b %b %d %d %d\r\n%b" % (*names, *numbers, body)


def _fetch(fetch: Fetch) -> bytes:
    version, topic, group, partition, offset, bytes_max, opaque, start_time = fetch
    _int32s(partition, bytes_max, opaque)
    names = _name("version", version), _name("topic", topic), _name("group", group)
    offsets = _int64("offset", offset), bytes_max, opaque, _int64("start time", start_time)
    return b"fetch %b %b %b %d %d %d %d %d\r\n" % (*names, partition, *offsets)


def _offset(query: GetOffset) -> bytes:
    topic, group, partition, offset, opaque, mode = query
    _int32s(partition, opaque)
    if mode not in _OFFSET_MODES:
        raise ValueError(f"offset mode {mode!r}: expected one of {', '.join(sorted(_OFFSET_MODES))}")
    word = b"" if mode == "segment" else b" " + mode.encode()
    names = _name("topic", topic), _name("group", group)
    return b"offset %b %b %d %d %d%b\r\n" % (*names, partition, _int64("offset", offset), opaque, word)


def _group(request: GroupRequest) -> bytes:
    action, group, body, opaque = request
    head = _name("action", action), _name("group", group), _length(body), _int32("opaque", opaque)
    return b"group %b %b %d %d\r\n%b" % (*head, body)


def _member_message(message: MemberMessage) -> bytes:
    return b"".join((encode_member_line(len(message.block), message.opaque), message.block))


def _stats(stats: Stats) -> bytes:
    item = _name("item", stats.item) if stats.item else b""
    return b"stats %b %d\r\n" % (item, _int32("opaque", stats.opaque))


def _version(version: Version) -> bytes:
    return b"version %d\r\n" % _int32("opaque", version.opaque)


def _quit(_quit: Quit) -> bytes:
    return b"quit\r\n"


def _transaction(transaction: TransactionCommand) -> bytes:
    key, session_id, type_, opaque, timeout_s, unique = transaction
    if type_ not in _TRANSACTION_TYPES:
        raise ValueError(f"transaction type {type_!r}: expected one of {', '.join(sorted(_TRANSACTION_TYPES))}")
    tokens = [NULL_KEY.encode() if key is None else _key(key), _name("session id", session_id), type_.encode()]
    if timeout_s is not None:
        tokens.append(b"%d" % _int32("timeout", timeout_s, 0))
    if unique is not None:
        name = _name("unique qualifier", unique)
        if timeout_s is None and name.isdigit():
            raise ValueError(
                f"unique qualifier {unique!r} without a timeout would be read as one: give both or add a letter"
            )
        tokens.append(name)
    return b"transaction %b %d\r\n" % (b" ".join(tokens), _int32("opaque", opaque))


def encode_result(code: int, text: str, opaque: int) -> bytes:
    """Return the bytes of a ``result`` reply, for a sender that has no ``Result``."""
    body = text.encode("utf-8", "surrogateescape")
    if not (INT32_MIN <= code <= INT32_MAX and INT32_MIN <= opaque <= INT32_MAX):
        _int32s(code, opaque)  # raises the error
    return b"result %d %d %d\r\n%b" % (code, len(body), opaque, body)


def _result(result: Result) -> bytes:
    return encode_result(*result)


def _value(value: Value) -> bytes:
    return b"".join((encode_value_line(len(value.data), value.opaque), value.data))


_ENCODERS: Final[dict[type, Callable[[Any], bytes]]] = {
    Put: _put,
    PutBatch: _put_batch,
    Sync: _sync,
    Copy: _copy,
    Decide: _decide,
    GroupRequest: _group,
    MemberMessage: _member_message,
    Get: _get,
    GetFiltered: _get_filtered,
    Fetch: _fetch,
    ReportTypes: _report_types,
    GetOffset: _offset,
    Stats: _stats,
    Version: _version,
    Quit: _quit,
    TransactionCommand: _transaction,
    Result: _result,
    Value: _value,
}


@lru_cache(maxsize=4096)
def _name(what: str, text: str) -> bytes:
    try:
        token = text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{what} {text[:80]!r} cannot be written as UTF-8: {error.reason}") from None
    if not token or len(token) > TOKEN_BYTES_MAX or b" " in token or b"\r" in token or b"\n" in token:
        raise ValueError(f"{what} {text[:80]!r}: expected 1..{TOKEN_BYTES_MAX} bytes without space, CR and LF")
    return token


@lru_cache(maxsize=4096)
def _key(key: TransactionId) -> bytes:
    text = str(key)
    if parse_transaction_id(text) != key:
        raise ValueError(f"transaction key {text!r} would be read as another one")
    return _name("transaction key", text)


def _line(what: str, text: str) -> bytes:
    if "\r" in text or "\n" in text:
        raise ValueError(f"{what} {text[:80]!r}: expected one line")
    return text.encode()


def _int32s(*values: int) -> None:
    if min(values) < INT32_MIN or max(values) > INT32_MAX:
        raise ValueError(f"numbers {values} (partition, flag, size, code or opaque): expected {INT32_MIN}..{INT32_MAX}")


def _int32(what: str, value: int, least: int = INT32_MIN) -> int:
    if not least <= value <= INT32_MAX:
        raise ValueError(f"{what} {value}: expected {least}..{INT32_MAX}")
    return value


def _int64(what: str, value: int, least: int = INT64_MIN) -> int:
    if not least <= value <= INT64_MAX:
        raise ValueError(f"{what} {value}: expected {least}..{INT64_MAX}")
    return value


def _length(body: Buffer) -> int:
    return _int32("length", len(body), 0)
