"""The settings of a running name server: request 319 shows them, 318 changes some of them permanently.

A change is written to the name server's configuration file, or to ``configStorePath``, and then answered. Other lines
of the file are kept.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from pathlib import Path
from typing import Final

from metaq_broker.log.files.files import Files
from metaq_broker.operate.config.ini import ConfigError
from metaq_broker.operate.config.properties import changed_properties, read_properties
from metaq_broker.rocketmq.nameserver.config import CHANGEABLE, KEYS, NameServerConfig, check, load, to_text

_LOG: Final = logging.getLogger(__name__)

CHANGE_CHARACTERS_MAX: Final = 1 << 16
"""Of one request; they are read on the event loop."""

_PATHS: Final = frozenset({"kvConfigPath", "configStorePath", "configStorePathName", "rocketmqHome"})


class LiveSettings:
    """``file`` is where changes are kept."""

    def __init__(self, config: NameServerConfig, files: Files, file: Path) -> None:
        self.config = config
        self._files, self._file = files, file
        self._one_at_a_time = asyncio.Lock()

    @property
    def order_messages(self) -> bool:
        """Whether routes carry the order configuration of their topic."""
        return self.config.order_messages

    def to_text(self) -> str:
        """Return all of them as a properties file."""
        return to_text(self.config)

    async def change(self, text: str) -> str | None:
        """Change the settings in ``text``; return the reason of a refusal, ``None`` if the change is durable."""
        if len(text) > CHANGE_CHARACTERS_MAX:
            return f"a change of {len(text)} characters; at most {CHANGE_CHARACTERS_MAX} are allowed"
        try:
            wanted = {name: value.rstrip() for name, value in read_properties(text).items()}
        except ValueError as error:
            return str(error)
        known = {key.name for key in KEYS}
        if not _PATHS.isdisjoint(wanted):
            return "Can not update config path"
        fixed = sorted(name for name in wanted if name in known - CHANGEABLE)
        if fixed:
            return f"{', '.join(fixed)}: can only be changed in the file, with a restart"
        for name in wanted.keys() - known:
            _LOG.warning("unknown setting ignored", extra={"fields": {"key": name[:80]}})
        values = {name: value for name, value in wanted.items() if name in CHANGEABLE}
        try:
            for name, value in values.items():
                check(name, value)
        except ConfigError as error:
            return str(error)
        async with self._one_at_a_time:
            return await self._keep(values)

    async def _keep(self, values: dict[str, str]) -> str | None:
        current = read_properties(self.to_text())
        if all(current[name] == value for name, value in values.items()):
            return None
        try:
            await asyncio.get_running_loop().run_in_executor(None, self._write, values)
        except OSError as error:
            return f"{self._file} cannot be changed: {error.strerror or error}"
        changed, _ = load("".join(f"{name}={value}\n" for name, value in values.items()), "request")
        fields = {key.attribute: getattr(changed, key.attribute) for key in KEYS if key.name in values}
        self.config = dataclasses.replace(self.config, **fields)
        _LOG.info("settings changed", extra={"fields": values})
        return None

    def _write(self, values: dict[str, str]) -> None:
        self._files.make_folders(self._file.parent)
        text = self._files.read_bytes(self._file).decode("utf-8", "replace") if self._files.exists(self._file) else ""
        self._files.write_atomic(self._file, changed_properties(text, values).encode())
