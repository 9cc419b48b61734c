"""The key-value pairs of a broker's own name server: an entry of the state, which its slaves and its pair have, too.

Earlier versions kept them in a file of their own; what that has is taken over once.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Final

from metaq.protocols.remoting.bodies.routes import KVConfig
from metaq_broker.log.files.errors import StateFull
from metaq_broker.log.files.files import Files
from metaq_broker.log.state.state_table import StateTable
from metaq_broker.rocketmq.nameserver.key_values import KeyValues, read_table

KEY: Final = "name-server/pairs"
"""Key of the entry; its value is what a file of RocketMQ's name server would have."""


class KeptKeyValues(KeyValues):
    """``path``: the file of earlier versions."""

    def __init__(self, state: StateTable, files: Files, path: Path) -> None:
        super().__init__(files, path)
        self._state = state

    def open(self) -> None:
        kept = self._state.get(KEY)
        if kept is not None:
            self._table = read_table(kept, self._state.path)
            return
        super().open()
        if self._table:
            with suppress(StateFull):  # then they are taken over by a later start
                self._state.put(KEY, KVConfig(config_table=self._table).to_json(), is_of_clients=True)

    async def close(self) -> None:
        """Leave what is not durable yet to the state, which is closed afterwards, and answer no more requests."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.cancel()
            await asyncio.wait([writing])
        await super().close()

    async def _store(self, content: bytes) -> str | None:
        before = self._state.get(KEY)
        durable: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

        def report(failure: Exception | None) -> None:
            if not durable.done():
                durable.set_result(failure)

        try:
            self._state.put(KEY, content, report, is_of_clients=True)
        except (StateFull, ValueError) as error:
            return f"key-value pairs cannot be kept: {error}"
        failure = await durable
        if failure is None:
            return None
        with suppress(StateFull, ValueError):  # the state goes on trying to write
            if before is None:
                self._state.delete(KEY)
            else:
                self._state.put(KEY, before)
        return f"key-value pairs cannot be kept: {failure}"
