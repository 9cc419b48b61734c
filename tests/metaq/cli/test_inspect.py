"""What ``consume`` and ``describe`` say of partitions that a Java broker offers and has not opened."""

from __future__ import annotations

import json
from collections.abc import Callable

from metaq.formats.frames import encode_frame
from metaq.model import Address
from metaq.testing.memory import MemoryBroker

Run = Callable[..., tuple[int, str, str]]

JAVA = frozenset[str]()
UNOPENED = "orders/0-1, orders/0-2: the broker offers this partition but does not list it, so it is not read"


def unopened(memory: dict[Address, MemoryBroker]) -> str:
    """A Java broker that has opened one of three partitions since it was restarted."""
    address, broker = Address("java", 8123), MemoryBroker({"orders": 3}, extensions=JAVA)
    broker.partition("orders", 0).append(encode_frame(1, 0, b"read"))
    memory[address] = broker
    return str(address)


def test_consume_says_what_a_java_broker_has_not_opened(command: Run, memory: dict[Address, MemoryBroker]) -> None:
    cluster = unopened(memory)
    status, out, err = command("-c", cluster, "consume", "orders")
    assert (status, out) == (1, "read\n")
    assert UNOPENED in err
    assert err.count("does not list it") == 1
    assert command("-c", cluster, "consume", "orders", "-p", "0-0") == (0, "read\n", "")
    assert command("-c", cluster, "consume", "orders", "-n", "1")[:2] == (0, "read\n")


def test_describe_says_what_a_java_broker_has_not_opened(command: Run, memory: dict[Address, MemoryBroker]) -> None:
    status, out, err = command("-c", unopened(memory), "describe", "orders", "--json")
    rows = {row["partition"]: row for row in map(json.loads, out.splitlines())}
    assert status == 0
    assert [(rows[name]["messages"], rows[name]["listed"]) for name in ("0-0", "0-1")] == [(None, True), (None, False)]
    assert UNOPENED in err


def test_nothing_is_said_of_empty_partitions_of_the_bundled_broker(
    command: Run, memory: dict[Address, MemoryBroker]
) -> None:
    address, broker = Address("ours", 8123), MemoryBroker({"orders": 3})
    broker.partition("orders", 0).append(encode_frame(1, 0, b"read"))
    memory[address] = broker
    assert command("-c", str(address), "consume", "orders") == (0, "read\n", "")
    assert command("-c", str(address), "describe", "orders")[2] == ""
