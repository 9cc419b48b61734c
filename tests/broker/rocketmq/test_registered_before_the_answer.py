"""A topic is at the name servers when the request that made it is answered: clients ask for its route at once."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

import pytest
from examples import LONG
from listeners import RemotingServer
from local_servers import RunningNameServer, broker_thread, running_name_server
from remoting_headers import send_header
from request_replay import Asker
from waiting import quickest_s

from metaq.formats.rocketmq.message_ids import OffsetMessageId
from metaq.model import Address
from metaq.protocols.remoting.bodies.groups import ConsumerData, HeartbeatData, SubscriptionData
from metaq.protocols.remoting.headers.clients import HeartBeat
from metaq.protocols.remoting.headers.sends import ConsumerSendMsgBack
from metaq.testing.ports import free_port

CREATED: Final = 20
MANY: Final = 2000 if LONG else 400
AGAIN_S: Final = 60.0
"""Between two attempts at a name server, in the test of one that hangs."""


class Setting:
    """A broker at two name servers, and a client of it."""

    def __init__(self, asker: Asker, name_servers: list[RunningNameServer]) -> None:
        self.asker, self.name_servers = asker, name_servers

    def everywhere(self, topic: str) -> bool:
        return all(each.do(lambda each=each: each.server.routes.route(topic)) for each in self.name_servers)

    def join(self, group: str) -> None:
        subscription = SubscriptionData(topic="orders")
        data = ConsumerData(group_name=group, subscription_data_set=(subscription,))
        self.asker.ask(HeartBeat(), HeartbeatData(client_id="one", consumer_data_set=(data,)))


def started(folder: Path, closing_: ExitStack, addresses: list[Address]) -> Asker:
    """A broker that registers at these addresses; a client of it."""
    port = free_port()
    section = (
        f"[topic=orders]\n[zookeeper]\nzk.zkEnable=false\n[rocketmq]\nenabled=true\nport={port}\nbrokerName=a\n"
        f"brokerIP1=127.0.0.1\nnamesrvAddr={';'.join(map(str, addresses))}\n"
    )
    closing_.enter_context(broker_thread(folder / "broker", section))
    return closing_.enter_context(closing(Asker(Address("127.0.0.1", port))))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


@pytest.fixture
def setting(tmp_path: Path, stack: ExitStack) -> Setting:
    servers = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        servers.append(stack.enter_context(running_name_server(tmp_path / name)))
    return Setting(started(tmp_path, stack, [each.address for each in servers]), servers)


def test_topics_of_operators(setting: Setting) -> None:
    for number in range(CREATED):
        assert setting.asker.create_topic(f"made-{number}").code == 0
        assert setting.everywhere(f"made-{number}"), number


def test_a_change_of_a_topic(setting: Setting) -> None:
    setting.asker.create_topic("grows", 1)
    setting.asker.create_topic("grows", 5)
    for server in setting.name_servers:
        route = server.do(lambda server=server: server.server.routes.route("grows"))  # type: ignore[misc]
        assert route is not None
        assert route.queue_datas[0].write_queue_nums == 5


def test_topics_that_are_made_by_sending(setting: Setting) -> None:
    for number in range(CREATED):
        setting.asker.ask(send_header(topic=f"sent-{number}", batch=False), b"one tea")
        assert setting.everywhere(f"sent-{number}"), number


def test_topics_of_retries(setting: Setting) -> None:
    for number in range(CREATED):
        setting.join(f"group-{number}")
        assert setting.everywhere(f"%RETRY%group-{number}"), number


def test_topics_of_dead_letters(setting: Setting) -> None:
    answer = setting.asker.ask(send_header(topic="orders", batch=False), b"one tea")
    place = OffsetMessageId.parse(answer.ext["msgId"]).physical_offset
    setting.asker.ask(ConsumerSendMsgBack(offset=place, group="billing", delay_level=-1))
    assert setting.everywhere("%DLQ%billing")


def test_beside_many_others(setting: Setting) -> None:
    for number in range(MANY):
        setting.asker.create_topic(f"many-{number}")
    numbers = itertools.count()
    assert quickest_s(lambda: setting.asker.create_topic(f"then-{next(numbers)}"), 1) < 1
    assert setting.asker.create_topic("last").code == 0
    assert setting.everywhere("last")


def took_s(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


@pytest.fixture
def silent(stack: ExitStack) -> RemotingServer:
    """Takes connections and requests, and says nothing."""
    return stack.enter_context(RemotingServer(lambda _served, _command: []))


def test_a_name_server_that_hangs_is_waited_for_once_and_not_for_long(
    tmp_path: Path, stack: ExitStack, silent: RemotingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metaq_broker.rocketmq.name_server_link.AGAIN_S", AGAIN_S)
    server = stack.enter_context(running_name_server(tmp_path))
    asker = started(tmp_path, stack, [silent.address, server.address])
    assert took_s(lambda: asker.create_topic("first")) < AGAIN_S / 2
    assert server.do(lambda: server.server.routes.route("first")) is not None
    silent.wait_for(lambda: bool(silent.received))
    longest, end = 9.0, time.monotonic() + 60
    while longest > 0.5 and time.monotonic() < end:  # from the end of its timeout on it is not waited for
        longest = took_s(lambda: asker.create_topic(f"then-{time.monotonic_ns()}"))
    assert longest <= 0.5
    asker.ask(send_header(topic="sent", batch=False), b"one tea")
    assert server.do(lambda: server.server.routes.route("sent")) is not None


def test_name_servers_that_are_away_are_not_waited_for(tmp_path: Path, stack: ExitStack) -> None:
    asker = started(tmp_path, stack, [Address("127.0.0.1", free_port())])
    asker.create_topic("first")
    numbers = itertools.count()
    assert quickest_s(lambda: asker.create_topic(f"then-{next(numbers)}"), 1) < 1
