"""Java's ``.properties`` files: read into a table, and changed line by line so that comments stay.

Source: java.util.Properties.load.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

_BLANKS: Final = " \t\f"
_SEPARATOR: Final = re.compile(rf"(?<!\\)(?:\\\\)*(?P<end>[{_BLANKS}]*[=:][{_BLANKS}]*|[{_BLANKS}]+)")
_ESCAPE: Final = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)
_SHORT: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def read_properties(text: str) -> dict[str, str]:
    """Return keys and values; for a repeated key, the last value. Blanks after a value belong to it.

    Raises:
        ValueError: ``\\u`` is not followed by four hex digits.
    """
    return dict(pair for pair in map(_pair, _logical_lines(text)) if pair is not None)


def changed_properties(text: str, values: Mapping[str, str]) -> str:
    """Return ``text`` with these values replaced, or appended for new keys. Raises as ``read_properties``."""
    missing = dict(values)
    lines = []
    for line in _logical_lines(text, keep=True):
        pair = _pair(line)
        if pair is None or pair[0] not in values:
            lines.append(line)
        elif pair[0] in missing:
            lines.append(write_property(pair[0], missing.pop(pair[0])))
    return "".join(f"{line}\n" for line in (*lines, *(write_property(*pair) for pair in missing.items())))


def write_property(key: str, value: str) -> str:
    """Return one line that reads back as ``value`` under ``key``."""
    written = value.replace("\\", "\\\\")
    for letter, character in _SHORT.items():
        written = written.replace(character, f"\\{letter}")
    return f"{key}={chr(92)}{written}" if written.startswith(" ") else f"{key}={written}"


def _logical_lines(text: str, *, keep: bool = False) -> Iterator[str]:
    """Yield the lines with their continuations: joined, or unchanged with ``keep``."""
    logical_line: list[str] = []
    for line in re.split(r"\r\n|\r|\n", text.removesuffix("\n")):
        comment = not logical_line and line.lstrip(_BLANKS)[:1] in ("#", "!")
        goes_on = not comment and (len(line) - len(line.rstrip("\\"))) % 2 == 1
        if keep:
            logical_line.append(line)
        else:
            logical_line.append((line.lstrip(_BLANKS) if logical_line else line)[: -1 if goes_on else None])
        if not goes_on:
            yield ("\n" if keep else "").join(logical_line)
            logical_line = []
    if logical_line:
        yield ("\n" if keep else "").join(logical_line)


def _pair(line: str) -> tuple[str, str] | None:
    line = next(iter(_logical_lines(line)), "") if "\n" in line else line
    line = line.lstrip(_BLANKS)
    if not line or line[0] in "#!":
        return None
    match = _SEPARATOR.search(line)
    key, value = (line, "") if match is None else (line[: match.start("end")], line[match.end("end") :])
    return _unescape(key), _unescape(value)


def _unescape(text: str) -> str:
    def replacement(match: re.Match[str]) -> str:
        escaped = match[1]
        if escaped == "u":
            raise ValueError(f"'{text[:80]}': \\u must be followed by four hex digits")
        return chr(int(escaped[1:], 16)) if len(escaped) == 5 else _SHORT.get(escaped, escaped)

    units = _ESCAPE.sub(replacement, text)
    # Two escapes may be the halves of one character: Java's are of 16 bits.
    return units.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
