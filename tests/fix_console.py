"""Fixtures of the console: its application in the test's process, in front of a broker in memory.

Imported by every run of the tests, so what the extra ``console`` brings is imported when a fixture needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from metaq.client.profile import Profile
from metaq.testing.memory_server import MemoryServer

if TYPE_CHECKING:
    from starlette.testclient import TestClient

    StartConsole = Callable[..., TestClient]


@pytest.fixture
def start_console() -> Iterator[StartConsole]:
    """Return a function that starts the application for a cluster, with any settings, and returns its client."""
    from metaq_console.app import create_app
    from metaq_console.console import make_console
    from metaq_console.settings import ConsoleSettings
    from starlette.testclient import TestClient

    with ExitStack() as stack:

        def start(cluster: str, **settings: object) -> TestClient:
            chosen = ConsoleSettings(profile=Profile(cluster=cluster), **settings)  # type: ignore[arg-type]
            app = create_app(make_console(chosen))
            base = f"http://127.0.0.1:{chosen.port}"
            return stack.enter_context(TestClient(app, base_url=base, raise_server_exceptions=False))

        yield start


@pytest.fixture
def console(metaq_memory: MemoryServer, start_console: StartConsole) -> TestClient:
    """Return a client of a console that may write, in front of ``metaq_memory``."""
    return start_console(metaq_memory.cluster, write=True)
