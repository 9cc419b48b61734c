"""The binary header (type 1): a fixed part of 21 bytes, with the remark and the fields after their lengths.

::

    code i16 | language i8 | version i16 | opaque i32 | flag i32
    remark length i32 | remark
    fields length i32 | repeated: name length i16 | name | value length i32 | value

Numbers are big-endian, texts UTF-8. Length 0 means no remark.

Source: docs/remoting-protocol.md, "Binary header".
"""

from __future__ import annotations

import struct
from typing import Final

from metaq.errors import FieldError, ProtocolError
from metaq.protocols.remoting.codes import LANGUAGES
from metaq.protocols.remoting.command import Codec, RemotingCommand

_FIXED: Final = struct.Struct(">hbhiii")  # up to the remark, with its length
_I32: Final = struct.Struct(">i")
_I16: Final = struct.Struct(">h")
_OTHER: Final = LANGUAGES.index("OTHER")
_NUMBERS: Final = {name: number for number, name in enumerate(LANGUAGES)}

NAME_BYTES_MAX: Final = 32_767
"""Longest name of a field."""
FIELDS_MAX: Final = 65_536
"""Limit on fields in one header: many short texts take much more memory than their bytes."""


def write_binary(command: RemotingCommand) -> bytes:
    """Return the header of ``command``. A language without a number is sent as OTHER.

    Raises:
        FieldError: ``code`` or ``version`` does not fit 16 bits, or the name of a field is too long.
    """
    for field, value in (("code", command.code), ("version", command.version)):
        if not -32_768 <= value <= 32_767:
            raise FieldError(str(command.code), field, value, "a number of 16 bits, or the header JSON")
    parts = [b"", b""]
    for name, text in command.ext.items():
        key, content = name.encode("utf-8", "replace"), text.encode("utf-8", "replace")
        if len(key) > NAME_BYTES_MAX:
            raise FieldError(str(command.code), name, text, f"under a name of at most {NAME_BYTES_MAX} bytes")
        parts += (_I16.pack(len(key)), key, _I32.pack(len(content)), content)
    remark = (command.remark or "").encode("utf-8", "replace")
    number = _NUMBERS.get(command.language, _OTHER)
    parts[0] = _FIXED.pack(command.code, number, command.version, command.opaque, command.flag, len(remark))
    parts[1] = remark + _I32.pack(sum(map(len, parts)) - len(parts[0]))
    return b"".join(parts)


def read_binary(header: bytes, body: bytes) -> RemotingCommand:
    """Return the command with this header. A field of length 0 is an empty text.

    Raises:
        ProtocolError: A length in ``header`` exceeds the available bytes.
    """
    try:
        code, language, version, opaque, flag, length = _FIXED.unpack_from(header)
        remark, at = _take(header, _FIXED.size, length)
        (ext_length,) = _I32.unpack_from(header, at)
    except struct.error:
        raise ProtocolError(f"binary header of {len(header)} bytes is cut off", header) from None
    at += _I32.size
    if not 0 <= ext_length <= len(header) - at:
        raise ProtocolError(f"fields of {ext_length} bytes in a binary header with {len(header) - at} left", header)
    return RemotingCommand(
        code=code,
        ext=_read_ext(header, at, at + ext_length),
        body=body,
        opaque=opaque,
        flag=flag,
        remark=remark or None,
        language=LANGUAGES[language] if 0 <= language < len(LANGUAGES) else "",
        version=version,
        codec=Codec.BINARY,
    )


def _read_ext(header: bytes, at: int, end: int) -> dict[str, str]:
    ext: dict[str, str] = {}
    try:
        while at < end:
            name, at = _take(header, at + _I16.size, _I16.unpack_from(header, at)[0])
            ext[name], at = _take(header, at + _I32.size, _I32.unpack_from(header, at)[0])
            if len(ext) > FIELDS_MAX:
                raise ProtocolError(f"binary header with more than {FIELDS_MAX} fields", header)
    except struct.error:
        raise ProtocolError("a field of a binary header is cut off", header) from None
    if at != end:
        raise ProtocolError("the last field of a binary header is longer than the fields", header)
    return ext


def _take(header: bytes, at: int, length: int) -> tuple[str, int]:
    end = at + length
    if length < 0 or end > len(header):
        raise ProtocolError(f"a text of {length} bytes in a binary header with {len(header) - at} left", header)
    return header[at:end].decode("utf-8", "replace"), end
