"""A server that can never be pulled from: a master ends the consumer, a slave is only avoided."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from metaq.client.groups.fetchers import FetchLog
from metaq.client.rocketmq.groups.fetchers import PullThreads
from metaq.client.rocketmq.groups.queue import Pull
from metaq.errors import ConnectionFailed, MetaqError, TlsRefused, WrongServer
from metaq.model import Address, Partition, TopicPartition
from metaq.net.identification import HTTP, ROCKETMQ

SERVER = Address("127.0.0.1", 10911)
PULL = Pull(TopicPartition("orders", Partition("broker-a", 0)), 0, 1, 0.0)
FINAL = (WrongServer(SERVER, ROCKETMQ, HTTP), TlsRefused(SERVER, "not trusted"))
AWAY = ConnectionFailed(SERVER, "connect", "refused")


@pytest.mark.parametrize(
    ("error", "is_master", "ends", "avoids"),
    [
        *((error, True, True, False) for error in FINAL),
        *((error, False, False, True) for error in FINAL),
        (AWAY, True, False, True),
        (AWAY, False, False, True),
    ],
)
def test_who_refuses_decides(error: MetaqError, is_master: bool, ends: bool, avoids: bool) -> None:
    ended: list[MetaqError] = []
    avoided: list[Address] = []
    repeated: list[Any] = []
    state: Any = SimpleNamespace(
        closing=False, fail=ended.append, fetched=lambda asked, *_: repeated.extend(asked), lock=threading.RLock()
    )
    directory: Any = SimpleNamespace(avoid=avoided.append, has_moved=lambda *_: False)
    client: Any = SimpleNamespace(disconnect=lambda _: None)
    queue: Any = object()
    pulls = PullThreads(state, directory, client, "g", client)
    pulls._ended(FetchLog("g", "broker-a"), queue, PULL, SERVER, is_master, error)
    assert ended == ([error] if ends else [])
    assert avoided == ([SERVER] if avoids else [])
    assert repeated == [(queue, PULL)]
