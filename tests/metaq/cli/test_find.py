"""``metaq find``: by id, by key, by time; an index is asked where there is one, a scan has bounds."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from metaq.formats.frames import encode_body, encode_frame
from metaq.formats.message_id import EPOCH_MS, TIME_SHIFT
from metaq.formats.rocketmq.message_ids import OffsetMessageId
from metaq.model import Address, Message, Partition
from metaq.protocols.remoting.headers.pulls import PullMessage, ViewMessageById
from metaq.testing.memory import MemoryBroker
from metaq.testing.rocketmq_server import ScriptedCluster

AT = Address("127.0.0.1", 8123)
METAQ = ("-c", str(AT))
QUEUE = Partition("broker-a", 0)

Run = Callable[..., tuple[int, str, str]]


def message_id(ms: int, broker_id: int = 0) -> int:
    return ms << TIME_SHIFT | broker_id << 12


def store(broker: MemoryBroker, index: int, message_id: int, message: Message) -> None:
    broker.partition("orders", index).append(encode_frame(message_id, *encode_body(message)))


@pytest.fixture
def broker(memory: dict[Address, MemoryBroker]) -> MemoryBroker:
    """Ten messages a second apart in each of two partitions, with the number of the message as attribute."""
    memory[AT] = broker = MemoryBroker({"orders": 2})
    for index in (0, 1):
        for number in range(10):
            store(broker, index, message_id(1000 * number + index), Message(b"%d-%d" % (index, number), str(number)))
    return broker


class TestMetaQ:
    def test_an_id_is_looked_for_from_its_time_on(self, broker: MemoryBroker, command: Run) -> None:
        wanted = str(message_id(7001))
        assert command(*METAQ, "find", "orders", "--id", wanted, "--format", r"%p %v\n") == (0, "0-1 1-7\n", "")
        assert command(*METAQ, "find", "orders", "--id", wanted, "--scan", "6")[0] == 0, "not from the beginning"
        assert command(*METAQ, "find", "orders", "--id", wanted, "-p", "0-1")[:2] == (0, "1-7\n")
        assert command(*METAQ, "find", "orders", "--id", wanted, "-p", "0-0")[:2] == (1, "")

    def test_an_id_without_a_time_is_looked_for_everywhere(
        self, memory: dict[Address, MemoryBroker], command: Run
    ) -> None:
        memory[AT] = java = MemoryBroker({"orders": 1}, extensions=frozenset())
        store(java, 0, -5 << TIME_SHIFT, Message(b"old"))
        assert command(*METAQ, "find", "orders", "--id", str(-5 << TIME_SHIFT))[:2] == (0, "old\n")
        status, _, err = command(*METAQ, "find", "orders", "--at", "@5")
        assert (status, "does not offer 'timestamp'" in err) == (1, True)

    def test_what_is_not_there_says_how_much_was_read(self, broker: MemoryBroker, command: Run) -> None:
        missing = str(message_id(8500))
        assert command(*METAQ, "find", "orders", "--id", missing) == (
            1, "", f"metaq: topic 'orders': no message with id {missing}, of 2 that were read\n",
        )  # fmt: skip
        status, _, err = command(*METAQ, "find", "orders", "--id", str(message_id(1, broker_id=9)))
        assert (status, "of 0 that were read" in err) == (1, True)
        assert command(*METAQ, "find", "orders", "--id", "AC10")[0] == 2
        assert command(*METAQ, "find", "nothing", "--key", "x")[0] == 1

    def test_a_key_is_an_attribute_and_the_scan_has_bounds(self, broker: MemoryBroker, command: Run) -> None:
        assert command(*METAQ, "find", "orders", "--key", "3")[1] == "0-3\n1-3\n"
        assert command(*METAQ, "find", "orders", "--key", "3", "-p", "0-1")[1] == "1-3\n"
        status, out, err = command(*METAQ, "find", "orders", "--key", "3", "--scan", "5")
        assert (status, out) == (0, "0-3\n")
        assert "5 messages were read, and there are more" in err
        since = f"@{EPOCH_MS + 3500}"
        assert command(*METAQ, "find", "orders", "--key", "3", "--since", since)[0] == 1
        assert command(*METAQ, "find", "orders", "--key", "9", "--until", since)[0] == 1
        assert command(*METAQ, "find", "orders", "--id", "1", "--since", since)[2] == (
            "metaq: --since and --until: they go with --key\n"
        )

    def test_the_first_from_a_time_on(self, broker: MemoryBroker, command: Run) -> None:
        time = f"@{EPOCH_MS + 4000}"
        assert command(*METAQ, "find", "orders", "--at", time)[1] == "0-4\n1-4\n"
        assert command(*METAQ, "find", "orders", "--at", time, "-p", "0-1")[1] == "1-4\n"
        row = json.loads(command(*METAQ, "find", "orders", "--at", time, "-p", "0-0", "--json")[1])
        assert (row["value"], row["message_id"]) == ("0-4", message_id(4000))
        assert command(*METAQ, "find", "orders", "--at", "2099-01-01") == (
            1, "", "metaq: topic 'orders': no message from 2099-01-01 on\n",
        )  # fmt: skip
        assert (
            "has no partition 0-7; it has 0-0, 0-1" in command(*METAQ, "find", "orders", "--at", time, "-p", "0-7")[2]
        )


class TestRocketMQ:
    def test_keys_and_producers_ids_are_looked_up(self, cluster: ScriptedCluster, rocketmq: str, command: Run) -> None:
        for number, key in enumerate(["order-0001", "other-0001", "order-0001 x"]):
            properties = {"KEYS": key, "UNIQ_KEY": f"id-{number:04}"}
            cluster.append("orders", QUEUE, [b"%d" % number], properties=properties, store_ms=1000 * number)
        find = ("-c", rocketmq, "find", "orders")
        assert command(*find, "--key", "order-0001")[1] == "0\n2\n", "another key with the same hash is left out"
        assert (
            command(*find, "--key", "order-0001", "--since", "@1000", "--format", r"%k %v\n")[1] == "order-0001 x 2\n"
        )
        assert command(*find, "--key", "order-0001", "--until", "@1500")[1] == "0\n"
        assert command(*find, "--id", "id-0001")[1] == "1\n"
        assert command(*find, "--key", "none") == (1, "", "metaq: topic 'orders': no message with key 'none'\n")
        assert PullMessage.CODE not in cluster.broker().counts()

    def test_a_brokers_id_is_read_at_that_broker(self, cluster: ScriptedCluster, rocketmq: str, command: Run) -> None:
        cluster.append("orders", QUEUE, [b"a", b"b"])
        _, out, _ = command("-c", rocketmq, "find", "orders", "--at", "@0", "--json")
        assert json.loads(out)["value"] == "a"
        host = next(iter(cluster.broker().store.all()))[3].record[64:72]
        ids = [str(OffsetMessageId(host, at)) for _, _, at, _ in cluster.broker().store.all()]
        for text, one in zip(ids, ("a\n", "b\n"), strict=True):
            assert command("-c", rocketmq, "find", "orders", "--id", text)[1] == one

    def test_an_id_of_another_cluster_connects_to_nobody(
        self, cluster: ScriptedCluster, rocketmq: str, command: Run
    ) -> None:
        foreign = str(OffsetMessageId(bytes([192, 0, 2, 1]) + (10911).to_bytes(4), 7))
        status, _, err = command("-c", rocketmq, "find", "orders", "--id", foreign)
        assert (status, err) == (1, f"metaq: topic 'orders': no message with id {foreign}\n")
        assert cluster.broker().counts()[ViewMessageById.CODE] == 0
