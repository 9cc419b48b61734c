"""Two scripted brokers, and consumers of both kinds, for the tests of this folder."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from group_members import Make, Member, Open
from two_brokers import Setting

from metaq import AsyncRocketMQ, RocketMQ
from metaq.net.transport import Timeouts
from metaq.testing.rocketmq_server import ScriptedCluster


@pytest.fixture
def setting() -> Iterator[Setting]:
    with ScriptedCluster(("broker-a", "broker-b")) as cluster:
        made = Setting(cluster)
        yield made
        made.mq.close()


@pytest.fixture(params=["threads", "asyncio"])
def clients(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes a client, which opens members of the group ``g`` that read ``orders``."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with ExitStack() as stack:
        if request.param == "threads":

            def make(name_servers: str, **options: Any) -> Open:
                mq = stack.enter_context(RocketMQ(name_servers, timeouts=Timeouts(2.0, 3.0), **options))
                return lambda **given: Member(
                    stack.enter_context(mq.consumer("g", ["orders"], **given)), lambda found: found
                )

            yield make
        else:
            loop = asyncio.new_event_loop()
            thread = threading.Thread(target=loop.run_forever)
            thread.start()
            stack.callback(lambda: (loop.call_soon_threadsafe(loop.stop), thread.join(), loop.close()))

            def ask(coroutine: Any) -> Any:
                return asyncio.run_coroutine_threadsafe(coroutine, loop).result(60)

            def entered(one: Any) -> Any:
                stack.callback(lambda: ask(one.__aexit__(None, None, None)))
                return ask(one.__aenter__())

            def make_async(name_servers: str, **options: Any) -> Open:
                mq = entered(AsyncRocketMQ(name_servers, timeouts=Timeouts(2.0, 3.0), **options))
                return lambda **given: Member(entered(mq.consumer("g", ["orders"], **given)), ask)

            yield make_async
