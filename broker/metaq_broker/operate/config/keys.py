"""The keys of server.ini as rows: each field of a section's class is the row of one key.

::

    idle_timeout_ms: int = key("idleTimeout", number(100, INT32_MAX), "ms without a request ...", 300_000)

Parsing, the errors about keys, the tables of docs/configuration.md, and the file that ``metaq-broker init`` writes are
made from the rows. A key without a default must be given and not blank, as in MetaQ.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from metaq_broker.operate.config.ini import ConfigError, Section
from metaq_broker.operate.config.values import Reader

REQUIRED: Final = object()
"""Default of a key that must be given."""

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

OTHERS, OUR_OWN, WITHOUT_EFFECT = "of the other system", "our own", "without effect"
"""Kinds of keys: MetaQ or RocketMQ has it, too; only this broker has it; it is accepted and has no effect."""


@dataclass(frozen=True, slots=True)
class Key:
    """One row.

    ``name`` in the file, ``attribute`` of the parsed section. ``shown``: the default as the documentation shows it.
    ``sample``: the value in a new file, if the key is not written as a comment there.
    """

    name: str
    read: Reader
    doc: str
    default: Any
    kind: str
    shown: str
    sample: str | None
    attribute: str = ""

    @property
    def default_text(self) -> str:
        """The default as it would be in a file; blank if there is none."""
        if self.default is REQUIRED or self.default is None or isinstance(self.default, tuple):
            return ""
        return str(self.default).lower() if isinstance(self.default, bool) else str(self.default)


def key(
    name: str,
    read: Reader,
    doc: str,
    default: Any = REQUIRED,
    *,
    kind: str = OTHERS,
    shown: str = "",
    sample: str | None = None,
) -> Any:
    """Return a field that is the row of a key."""
    of_field = dataclasses.MISSING if default is REQUIRED else default
    return dataclasses.field(default=of_field, metadata={"key": Key(name, read, doc, default, kind, shown, sample)})


def keys_of(section: type) -> tuple[Key, ...]:
    fields = [field for field in dataclasses.fields(section) if "key" in field.metadata]
    return tuple(dataclasses.replace(field.metadata["key"], attribute=field.name) for field in fields)


_GONE: Final = {
    "diamondZKDataId": "diamond is not supported; remove this key and write zk.zkConnect=HOST:PORT,... in [zookeeper]",
    "diamondZKGroup": "diamond is not supported; remove this key and write zk.zkConnect=HOST:PORT,... in [zookeeper]",
}
FILTER_PREFIX: Final = "group."
_IGNORED: Final = {
    "localReads": "readers get all bytes from the broker, so it is not needed any more; remove it",
    "localWrites": "clients send their blocks, so it is not needed any more; remove it",
}


def ignored_keys(section: Section) -> dict[str, str]:
    """Return the keys of a section that are known and have no effect, with the reason."""
    found = {name: _IGNORED[name] for name in section.values if name in _IGNORED}
    for name in section.values:
        if name.startswith(FILTER_PREFIX) and section.name.startswith("topic"):
            found[name] = "filters that are Java classes do not run here; readers of this group get all messages"
    return found


def read_section(
    section: Section, keys: Iterable[Key], source: str, inherited: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return attribute -> value for every key; a missing or blank key gets ``inherited``'s value, else its default.

    Raises:
        ConfigError: An unknown key (the nearest valid one is named), a wrong value, or a required key that is missing.
    """
    rows = tuple(keys)
    if inherited is None:
        check_keys([(section, rows)], source)
    else:
        _check_names(section, rows, source)
    return {key.attribute: _value(section, key, source, inherited) for key in rows}


def _check_names(section: Section, keys: Iterable[Key], source: str) -> None:
    table, ignored = {key.name: key for key in keys}, ignored_keys(section)
    for name in section.values:
        if name not in table and name not in ignored:
            raise ConfigError(_where(source, section, name), _unknown(name, table))


def check_keys(sections: Sequence[tuple[Section, Iterable[Key]]], source: str) -> None:
    """Check that all keys are known, and that those without default have values, in some sections of a file.

    Raises:
        ConfigError: An unknown key (the nearest valid one is named); or keys without a value, all of them.
    """
    for section, keys in sections:
        _check_names(section, keys, source)
    missing = [
        f"[{section.name}] {key.name}"
        for section, keys in sections
        for key in keys
        if key.default is REQUIRED and not section.values.get(key.name)
    ]
    if len(missing) == 1:
        raise ConfigError(f"{source} {missing[0]}", "is required and has no value")
    if missing:
        raise ConfigError(source, f"{', '.join(missing[:-1])} and {missing[-1]} are required and have no value")


def _value(section: Section, key: Key, source: str, inherited: Mapping[str, Any] | None) -> Any:
    text = section.values.get(key.name, "")
    if text:
        try:
            return key.read(text)
        except ValueError as allowed:
            raise ConfigError(_where(source, section, key.name), f"value {text!r}; expected {allowed}") from None
    if inherited is not None:
        return inherited[key.attribute]
    return key.default


def _unknown(name: str, table: Mapping[str, Key]) -> str:
    if name in _GONE:
        return _GONE[name]
    nearest = {key.lower(): key for key in table}
    match = difflib.get_close_matches(name.lower(), nearest, n=1, cutoff=0.0)
    return f"unknown key; the nearest valid key is {nearest[match[0]]}"


def _where(source: str, section: Section, key: str) -> str:
    return f"{source} [{section.name}] {key}"
