"""A whole broker in a thread of this process, for tests that need a real one and cannot wait for a process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fix_broker import system_section
from metaq_broker.app import Broker
from metaq_broker.config.configuration import parse

from metaq.model import Address

DEADLINE_S = 10.0


@contextmanager
def broker_thread(folder: Path, rest: str = "[topic=*]\n", **keys: object) -> Iterator[Address]:
    """Run a broker with its messages in ``folder`` as long as the block lasts; yield its address.

    ``keys`` are of its system section, ``rest`` stands behind that.
    """
    text = system_section(**{"dataPath": folder, "hostName": "127.0.0.1", "bindAddress": "127.0.0.1"} | keys)
    broker = Broker(parse(f"{text}{rest}".encode(), "test.ini"), None, lambda: None)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="test-broker", daemon=True)
    thread.start()

    async def open_and_serve() -> None:
        await broker.open()
        await broker.serve()

    try:
        asyncio.run_coroutine_threadsafe(open_and_serve(), loop).result(DEADLINE_S)
        yield Address("127.0.0.1", broker.port)
    finally:
        asyncio.run_coroutine_threadsafe(broker.close(), loop).result(DEADLINE_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
