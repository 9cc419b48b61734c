"""Texts under keys of namespaces, kept in one JSON file that RocketMQ's own name server reads as well.

A change is answered, and visible to others, when it is durable. The file is replaced as a whole (a crash leaves the old
or the new one), in a thread; changes made meanwhile share the next replacement.

Source: docs/name-server.md, "Key-value pairs".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from metaq.errors import FieldError
from metaq.protocols.remoting.bodies.json_text import load_json
from metaq.protocols.remoting.bodies.routes import KVConfig
from metaq_broker.log.files.files import Files
from metaq_broker.operate.config.ini import ConfigError

_LOG: Final = logging.getLogger(__name__)

ORDER_TOPICS: Final = "ORDER_TOPIC_CONFIG"
"""The namespace of topics whose order is kept: topic -> ``broker:queues;broker:queues``."""

Table = dict[str, dict[str, str]]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class KeyValueLimits:
    """Characters of a name (of a namespace or key) and of a value; bytes of the whole file."""

    name_characters_max: int = 1024
    value_characters_max: int = 1 << 18
    file_bytes_max: int = 16 << 20


@dataclass(frozen=True, slots=True)
class Change:
    """Set ``key`` to ``value``, or delete it where ``value`` is ``None``. ``done(error)`` is called when it is kept."""

    namespace: str
    key: str
    value: str | None
    done: Callable[[str | None], None]


class KeyValues:
    """The key-value pairs. ``open`` reads the file; afterwards, use it on the event loop only."""

    def __init__(self, files: Files, path: Path, limits: KeyValueLimits | None = None) -> None:
        self._files, self.path = files, path
        self._limits = KeyValueLimits() if limits is None else limits
        self._table: Table = {}
        self._waiting: list[Change] = []
        self._writing: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kvConfig")
        self._lock: int | None = None

    def open(self) -> None:
        """Lock and read the file.

        Raises:
            ConfigError: It cannot be read, is not valid, or another name server uses it.
        """
        try:
            self._files.make_folders(self.path.parent)
            self._lock = self._files.lock_exclusive(self.path.with_name(self.path.name + ".lock"))
            content = self._files.read_bytes(self.path) if self._files.exists(self.path) else b""
        except BlockingIOError:
            raise ConfigError("kvConfigPath", f"{self.path} is used by another name server that is running") from None
        except OSError as error:
            raise ConfigError("kvConfigPath", f"{self.path} cannot be used: {error.strerror or error}") from None
        if content.strip():
            self._table = read_table(content, self.path)
        elif content or self._files.exists(self.path):
            _LOG.warning("the file of key-value pairs is empty", extra={"fields": {"file": self.path}})

    async def close(self) -> None:
        """Wait until all changes are durable, and unlock the file."""
        if self._writing is not None:
            await self._writing
        self._thread.shutdown()
        if self._lock is not None:
            self._files.close(self._lock)
            self._lock = None

    def get(self, namespace: str, key: str) -> str | None:
        """Return the value of a key, ``None`` if there is none."""
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> Mapping[str, str] | None:
        """Return a whole namespace, ``None`` if there never was one; it may be empty."""
        return self._table.get(namespace)

    def change(self, change: Change) -> None:
        """Set or delete a key; ``change.done`` is called when that is on the disk, with a text if it failed.

        Raises:
            FieldError: A name or value is too long.
        """
        self._check(change)
        self._waiting.append(change)
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write())

    async def _write(self) -> None:
        try:
            while self._waiting:
                changes, self._waiting = self._waiting, []
                table = {name: dict(pairs) for name, pairs in self._table.items()}
                for change in changes:
                    _apply(table, change)
                failure = await self._keep(table)
                if failure is None:
                    self._table = table
                for change in changes:
                    change.done(failure)
        finally:
            self._writing = None

    async def _keep(self, table: Table) -> str | None:
        """Keep a table durably in place of the last one; return why that failed."""
        content = await self._in_thread(lambda: KVConfig(config_table=table).to_json())
        if len(content) > self._limits.file_bytes_max:
            return f"key-value pairs would take {len(content)} bytes; at most {self._limits.file_bytes_max} are allowed"
        return await self._store(content)

    async def _in_thread(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def _store(self, content: bytes) -> str | None:
        return await self._in_thread(partial(self._replace, content))

    def _replace(self, content: bytes) -> str | None:
        try:
            self._files.write_atomic(self.path, content)
        except OSError as error:
            _LOG.error("key-value pairs not kept", extra={"fields": {"file": self.path, "reason": error}})
            return f"key-value pairs cannot be kept: {error.strerror or error}"
        return None

    def _check(self, change: Change) -> None:
        for name, text, limit in (
            ("namespace", change.namespace, self._limits.name_characters_max),
            ("key", change.key, self._limits.name_characters_max),
            ("value", change.value or "", self._limits.value_characters_max),
        ):
            if len(text) > limit:
                raise FieldError("PUT_KV_CONFIG", name, text, f"at most {limit} characters")


def read_table(content: bytes, path: Path) -> Table:
    """Parse a file of key-value pairs, of this name server or Java's. Nulls, which Java may write, are ignored.

    Raises:
        ConfigError: It is not such a file.
    """
    try:
        value = load_json(content, "kvConfig.json")
    except FieldError as error:
        raise ConfigError("kvConfigPath", f"{path} is no JSON ({error}); {_HINT}") from None
    table = value.get("configTable", {}) if isinstance(value, dict) else None
    if not isinstance(table, dict) or not all(isinstance(pairs, dict) for pairs in table.values()):
        raise ConfigError("kvConfigPath", f"{path} has no configTable of namespaces; {_HINT}")
    return {name: {key: str(text) for key, text in pairs.items() if text is not None} for name, pairs in table.items()}


_HINT: Final = "RocketMQ keeps the content before the last change in a .bak file beside it"


def _apply(table: Table, change: Change) -> None:
    if change.value is not None:
        table.setdefault(change.namespace, {})[change.key] = change.value
    elif change.namespace in table:
        table[change.namespace].pop(change.key, None)
