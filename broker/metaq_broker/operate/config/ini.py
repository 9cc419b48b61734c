"""Reads MetaQ's INI dialect: sections, ``key=value`` lines, whole-line comments. Knows no key.

A file is UTF-8 or, as MetaQ's own samples are, GBK. ``;`` and ``#`` start a comment only at the beginning of a line, so
that a value may contain them. The first ``=`` or ``:`` ends the key.

Source: docs/configuration.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from metaq.errors import MetaqError

_KEY_END = re.compile(r"[=:]")


class ConfigError(MetaqError):
    """A configuration that cannot be used: ``where`` (file, section, key, or line), ``what`` is wrong and allowed."""

    def __init__(self, where: str, what: str) -> None:
        self.where, self.what = where, what
        super().__init__(where, what)

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


@dataclass(slots=True)
class Section:
    """One ``[name]``: its keys in file order with their values (``""`` if blank), and the number of its first line."""

    name: str
    line: int
    values: dict[str, str] = field(default_factory=dict)


def decode_text(raw: bytes, source: str) -> str:
    """Return the file's text, without a byte order mark.

    Raises:
        ConfigError: The bytes are neither UTF-8 nor GBK.
    """
    for encoding in ("utf-8-sig", "gbk"):
        try:
            return raw.decode(encoding)
        except UnicodeDecodeError:
            continue
    raise ConfigError(source, "the file is neither UTF-8 nor GBK text")


def parse_ini(raw: bytes, source: str) -> list[Section]:
    """Return the sections of ``raw`` in file order; ``source`` names the file in errors.

    Raises:
        ConfigError: A line is not a comment, section or ``key=value``; a section or key given twice; a key before the
            first section.
    """
    sections: dict[str, Section] = {}
    current: Section | None = None
    for number, line in enumerate(decode_text(raw, source).splitlines(), 1):
        text = line.strip()
        if not text or text[0] in ";#":
            continue
        where = f"{source} line {number}"
        if text[0] == "[":
            current = _open_section(sections, text, number, where)
        elif current is None:
            raise ConfigError(where, f"{text!r} stands before the first section; write [system] above it")
        else:
            _add_value(current, text, where)
    return list(sections.values())


def _open_section(sections: dict[str, Section], text: str, number: int, where: str) -> Section:
    name = text[1:-1].strip()
    if text[-1] != "]" or not name:
        raise ConfigError(where, f"{text!r} is no section; expected [system], [zookeeper] or [topic=NAME]")
    if name in sections:
        raise ConfigError(where, f"section [{name}] is given twice, first on line {sections[name].line}")
    return sections.setdefault(name, Section(name, number))


def _add_value(section: Section, text: str, where: str) -> None:
    split = _KEY_END.search(text)
    key = text[: split.start()].strip() if split else ""
    if split is None or not key:
        raise ConfigError(where, f"{text!r} is not of the form key=value")
    if key in section.values:
        raise ConfigError(where, f"key {key!r} is given twice in [{section.name}]")
    section.values[key] = text[split.end() :].strip()
