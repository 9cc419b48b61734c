"""The supported part of YAML for files of accounts: mappings, lists, texts. Everything else is refused.

::

    # a comment
    key: text               texts are bare, 'quoted' or "quoted"; numbers and booleans are texts, too
    list:                   items are indented, or stand below the key
      - text
      - key: text           an item that is a mapping; its other keys stand below the first one
        other: [a, b]       a list in one line, of texts

Source: YAML 1.2, the block style with plain and quoted scalars and flow sequences of scalars.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from metaq.errors import MetaqError

Value = str | list["Value"] | dict[str, "Value"]

DEPTH_MAX: Final = 20

_KEY: Final = re.compile(r"""(?P<key>"[^"\\]*"|'[^']*'|[^\s"'\[\]{},#&*!|>%@`?:-][^:#"']*?)\s*:(?:\s+(?P<rest>.*))?$""")
_ITEM: Final = re.compile(r"-(?:\s+(?P<rest>.*))?$")
_QUOTED: Final = re.compile(r""""(?P<double>(?:[^"\\]|\\.)*)"|'(?P<single>(?:[^']|'')*)'""")
_ESCAPES: Final = {"n": "\n", "t": "\t", '"': '"', "\\": "\\", "/": "/"}
_SPECIAL: Final = "[]{}&*!|>%@`"


class YamlRefused(MetaqError):
    """Line ``line`` (from 1) is not in the supported part of YAML: ``reason``."""

    def __init__(self, line: int, reason: str) -> None:
        self.line, self.reason = line, reason
        super().__init__(line, reason)

    def __str__(self) -> str:
        return f"line {self.line}: {self.reason}"


class _Line(NamedTuple):
    number: int
    indent: int
    text: str


def parse_yaml(text: str) -> Value:
    """Parse a file; an empty one is an empty mapping.

    Raises:
        YamlRefused: It is not in the supported part of YAML.
    """
    lines = _lines(text)
    if not lines:
        return {}
    parser = _Parser(lines)
    value = parser.block(lines[0].indent, 0)
    if parser.at < len(lines):
        raise YamlRefused(lines[parser.at].number, "it is indented in another way than the lines before")
    return value


def _lines(text: str) -> list[_Line]:
    found: list[_Line] = []
    for number, raw in enumerate(text.splitlines(), 1):
        content = raw[: _outside_quotes(raw, "#", only_after_blank=True)[0]].rstrip()
        if not content.strip() or (content == "---" and not found):
            continue
        stripped = content.lstrip(" ")
        if stripped.startswith("\t"):
            raise YamlRefused(number, "a tab in the indentation; expected blanks")
        found.append(_Line(number, len(content) - len(stripped), stripped))
    return found


class _Parser:
    """Reads block by block; ``at`` is the next line."""

    def __init__(self, lines: list[_Line]) -> None:
        self._lines = lines
        self.at = 0

    def block(self, indent: int, depth: int) -> Value:
        """Return the list or mapping whose lines begin at ``indent``."""
        line = self._lines[self.at]
        if depth > DEPTH_MAX:
            raise YamlRefused(line.number, f"more than {DEPTH_MAX} levels")
        return self._list(indent, depth) if _ITEM.match(line.text) else self._mapping(indent, depth)

    def _next(self, indent: int) -> _Line | None:
        if self.at >= len(self._lines) or self._lines[self.at].indent != indent:
            return None
        return self._lines[self.at]

    def _list(self, indent: int, depth: int) -> list[Value]:
        items: list[Value] = []
        while (line := self._next(indent)) is not None and (match := _ITEM.match(line.text)) is not None:
            rest = match["rest"] or ""
            if rest and (_KEY.match(rest) or _ITEM.match(rest)):
                inner = indent + len(line.text) - len(rest)  # the first line of the item begins its block
                self._lines[self.at] = _Line(line.number, inner, rest)
                items.append(self.block(inner, depth + 1))
            else:
                self.at += 1
                items.append(_scalar(line.number, rest) if rest else self._below(indent, depth))
        return items

    def _mapping(self, indent: int, depth: int) -> dict[str, Value]:
        values: dict[str, Value] = {}
        while (line := self._next(indent)) is not None and not _ITEM.match(line.text):
            match = _KEY.match(line.text)
            if match is None:
                raise YamlRefused(line.number, f"{line.text[:40]!r}; expected KEY: VALUE or - VALUE")
            key = match["key"].strip("\"'")
            if key in values:
                raise YamlRefused(line.number, f"key {key[:40]!r} is there twice")
            self.at += 1
            rest = match["rest"] or ""
            values[key] = _scalar(line.number, rest) if rest else self._below(indent, depth, lists_beside=True)
        return values

    def _below(self, indent: int, depth: int, *, lists_beside: bool = False) -> Value:
        """Return the block below a line that has no value of its own; an empty text without one."""
        if self.at >= len(self._lines):
            return ""
        line = self._lines[self.at]
        if line.indent > indent:
            return self.block(line.indent, depth + 1)
        if lists_beside and line.indent == indent and _ITEM.match(line.text):
            return self._list(indent, depth + 1)
        return ""


def _scalar(number: int, text: str) -> Value:
    if text.startswith("["):
        if not text.endswith("]"):
            raise YamlRefused(number, "a list in one line ends with ]")
        inner = text[1:-1].strip()
        return [_text(number, part.strip()) for part in _parts(inner)] if inner else []
    return _text(number, text)


def _parts(text: str) -> list[str]:
    """Split at the commas outside of quotation marks; a last empty part does not count."""
    ends = _outside_quotes(text, ",")
    parts = [text[start:end] for start, end in zip([0, *(end + 1 for end in ends)], ends, strict=False)]
    return parts if parts[-1].strip() else parts[:-1]


def _outside_quotes(text: str, sign: str, *, only_after_blank: bool = False) -> list[int]:
    """Return the positions of ``sign`` outside of quotation marks, and the length of the text.

    A quotation mark begins a quoted text only at the start of a value; elsewhere it is an ordinary character. In such a
    text, two single ones end and begin it.
    """
    found, quote, escaped, before, ended = [], "", False, " ", False
    for at, character in enumerate(text):
        if quote:
            ended = character == quote and not escaped
            quote = "" if ended else quote
            escaped = character == "\\" and not escaped and quote == '"'
        elif character in "\"'" and (before in " \t[," or (ended and character == before)):
            quote = character
        elif character == sign and (not only_after_blank or before in " \t"):
            found.append(at)
        ended, before = ended and character in "\"'", character
    return [*found, len(text)]


def _text(number: int, text: str) -> str:
    if (quoted := _QUOTED.fullmatch(text)) is not None:
        if quoted["single"] is not None:
            return quoted["single"].replace("''", "'")
        return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[0]), quoted["double"])
    if text[:1] and text[0] in _SPECIAL + "\"'":
        raise YamlRefused(number, f"value {text[:40]!r}; put a text that begins so into quotation marks")
    if re.search(r":(\s|$)", text):
        raise YamlRefused(number, f"value {text[:40]!r}; put a text with a colon into quotation marks")
    return "" if text in ("~", "null") else text
