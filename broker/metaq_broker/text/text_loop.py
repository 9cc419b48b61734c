"""The loops over a run of text puts, compiled by numba; imported by ``text_puts`` once a broker has use for them.

One makes frames of puts, the other replies of the frames that were stored. They read and write at addresses, whose
bounds are passed with them. Both run without the interpreter's lock, and their code is kept as ``machine_code`` says.
"""

# mypy: disable-error-code="call-arg, no-untyped-call, no-untyped-def, var-annotated"
# numba compiles these functions by its own rules and has no types to check them against.

from __future__ import annotations

import numba
import numpy as np

from metaq.formats.frames import HEADER_BYTES
from metaq.model import INT32_MAX, INT32_MIN
from metaq_broker.log.engine.machine_code import byte_at, compiled, copy_bytes, number_at, put_byte, put_number

SPACE, CR, LF, MINUS, ZERO = 32, 13, 10, 45, 48
ID_AT = 8
DIGITS_MAX = 10
"""Digits that a number of 32 bits has at most; one with zeros in front may have more and is left to others."""

NO_NUMBER = np.int64(1) << 40
"""Stands for what is none, and is none that fits 32 bits."""


@numba.njit(inline="always")
def _number_to(address, limit, end_byte):
    """The number of 32 bits before an ``end_byte``, and the address behind that; ``NO_NUMBER`` if there is none."""
    negative = address < limit and byte_at(address) == MINUS
    if negative:
        address += 1
    value, digits = np.int64(0), 0
    while address < limit and digits <= DIGITS_MAX:
        digit = np.int64(byte_at(address)) - ZERO
        if digit < 0 or digit > 9:
            break
        value = 10 * value + digit
        digits += 1
        address += 1
    if digits == 0 or digits > DIGITS_MAX or address >= limit or byte_at(address) != end_byte:
        return NO_NUMBER, address
    value = -value if negative else value
    return (value if INT32_MIN <= value <= INT32_MAX else NO_NUMBER), address + 1


@numba.njit(inline="always")
def _same(one, other, length):
    for position in range(length):  # noqa: SIM110 - numba knows no all()
        if byte_at(one + position) != byte_at(other + position):
            return False
    return True


def _frame(puts, size, prefix_bytes, line_bytes_max, body_bytes_max, block, block_bytes, opaques):
    """Make frames, whose ids are 0, of the puts in ``size`` bytes; return bytes taken and bytes made, and their number.

    A put counts if it is whole, begins as the first does (``put TOPIC PARTITION ``) and goes on with LENGTH, FLAG,
    CHECKSUM, none below 0 but the flag, and OPAQUE. The first one that is otherwise ends it, as does a full ``block``
    or array of ``opaques``. The checksum is what the put says; whether it is right remains to be seen.
    """
    start, limit, made, count = puts, puts + size, block, 0
    made_limit = block + block_bytes
    while count < opaques.size and limit - start > prefix_bytes and _same(start, puts, prefix_bytes):
        line_limit = min(limit, start + line_bytes_max + 1)  # its CR may stand right behind the longest line
        length, at = _number_to(start + prefix_bytes, line_limit, SPACE)
        if length < 0 or length > body_bytes_max:
            break
        flag, at = _number_to(at, line_limit, SPACE)
        if flag == NO_NUMBER:
            break
        checksum, at = _number_to(at, line_limit, SPACE)
        if checksum < 0 or checksum == NO_NUMBER:
            break
        opaque, body = _number_to(at, line_limit, CR)
        if opaque == NO_NUMBER or body >= limit or byte_at(body) != LF:
            break
        body += 1
        if length > limit - body or length + HEADER_BYTES > made_limit - made:
            break
        put_number(made, np.int32(length))
        put_number(made + 4, np.int32(checksum))
        put_number(made + ID_AT, np.int64(0))
        put_number(made + 16, np.int32(flag))
        copy_bytes(made + HEADER_BYTES, body, length)
        opaques[count] = opaque
        made, start, count = made + HEADER_BYTES + length, body + length, count + 1
    return start - puts, made - block, count


@numba.njit(inline="always")
def _digits(number):
    count, rest = 1, number // 10
    while rest:
        count, rest = count + 1, rest // 10
    return count


@numba.njit(inline="always")
def _print(address, number, digits):
    """Write a number of so many digits; return the address behind it."""
    position = address + digits
    while position > address:
        position -= 1
        rest = number // 10
        put_byte(position, np.uint8(ZERO + number - 10 * rest))
        number = rest
    return address + digits


@numba.njit(inline="always")
def _print_signed(address, number):
    if number < 0:
        put_byte(address, np.uint8(MINUS))
        address, number = address + 1, -number
    return _print(address, number, _digits(number))


def _reply(block, count, first_offset, index, opaques, head, replies):
    """Write the replies to puts whose frames, with their ids, stand in ``block``; return how many bytes they take.

    A reply is ``head`` (``result 200 ``), LENGTH, OPAQUE, a line end, and ``ID INDEX OFFSET``, which is so long.
    """
    head_at, out, frame, offset = head.ctypes.data, replies.ctypes.data, block, first_offset
    at, index_digits = out, _digits(index)
    for number in range(count):
        message_id = number_at(frame + ID_AT, np.int64)
        id_digits, offset_digits = _digits(message_id), _digits(offset)
        copy_bytes(at, head_at, head.size)
        length = id_digits + index_digits + offset_digits + 2
        at = _print(at + head.size, length, _digits(length))
        put_byte(at, np.uint8(SPACE))
        at = _print_signed(at + 1, np.int64(opaques[number]))
        put_byte(at, np.uint8(CR))
        put_byte(at + 1, np.uint8(LF))
        at = _print(at + 2, message_id, id_digits)
        put_byte(at, np.uint8(SPACE))
        at = _print(at + 1, index, index_digits)
        put_byte(at, np.uint8(SPACE))
        at = _print(at + 1, offset, offset_digits)
        size = HEADER_BYTES + np.int64(number_at(frame, np.int32))
        frame, offset = frame + size, offset + size
    return at - out


frame = compiled(_frame, "UniTuple(int64, 3)(int64, int64, int64, int64, int64, int64, int64, int32[::1])")
reply = compiled(_reply, "int64(int64, int64, int64, int64, int32[::1], uint8[::1], uint8[::1])")
