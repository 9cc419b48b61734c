"""One scripted broker, or two, and consumers of both kinds, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
from local_servers import LoopThread
from rocketmq_clients import Make, Member, Open, Setting

from metaq import AsyncRocketMQ, RocketMQ
from metaq.net.transport import Timeouts
from metaq.testing.rocketmq_server import ScriptedCluster


@pytest.fixture
def cluster(rocketmq_memory: ScriptedCluster) -> ScriptedCluster:
    rocketmq_memory.create_topic("orders", queues=2)
    return rocketmq_memory


@pytest.fixture
def setting() -> Iterator[Setting]:
    with ScriptedCluster(("broker-a", "broker-b")) as cluster:
        made = Setting(cluster)
        yield made
        made.mq.close()


@pytest.fixture(params=["threads", "asyncio"])
def clients(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Makes a client, which opens members of the group ``g`` that read ``orders``."""
    with ExitStack() as stack:
        if request.param == "threads":

            def make(name_servers: str, **options: Any) -> Open:
                mq = stack.enter_context(RocketMQ(name_servers, timeouts=Timeouts(60.0, 60.0), **options))
                return lambda **given: Member(stack.enter_context(mq.consumer("g", ["orders"], **given)))

            yield make
        else:
            ask = stack.enter_context(closing(LoopThread())).run

            def entered(one: Any) -> Any:
                stack.callback(lambda: ask(one.__aexit__(None, None, None)))
                return ask(one.__aenter__())

            def make_async(name_servers: str, **options: Any) -> Open:
                mq = entered(AsyncRocketMQ(name_servers, timeouts=Timeouts(60.0, 60.0), **options))
                return lambda **given: Member(entered(mq.consumer("g", ["orders"], **given)), ask)

            yield make_async
