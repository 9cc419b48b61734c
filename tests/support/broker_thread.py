"""A whole broker in a thread of this process, for tests that need a real one and cannot wait for a process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from fix_broker import system_section
from loop_thread import LoopThread
from metaq_broker.app import Broker
from metaq_broker.config.configuration import parse

from metaq.model import Address


@contextmanager
def broker_thread(folder: Path, rest: str = "[topic=*]\n", **keys: object) -> Iterator[Address]:
    """Run a broker with its messages in ``folder`` as long as the block lasts; yield its address.

    ``keys`` are of its system section, ``rest`` stands behind that.
    """
    text = system_section(**{"dataPath": folder, "hostName": "127.0.0.1", "bindAddress": "127.0.0.1"} | keys)
    broker = Broker(parse(f"{text}{rest}".encode(), "test.ini"), None, lambda: None)
    with closing(LoopThread()) as loop:
        try:
            loop.run(broker.open())
            loop.run(broker.serve())
            yield Address("127.0.0.1", broker.port)
        finally:
            loop.run(broker.close())
