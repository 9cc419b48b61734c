"""A topic's route as a value, read from a name server's answer and checked: what cannot be is refused by name.

A broker is a name with addresses by broker id: 0 is the master, others are its slaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from metaq.model import Address, Partition

QUEUE_COUNT_MAX: Final = 65536
"""Above any number of queues that a broker has of a topic; more in a route is taken for nonsense."""

_READ: Final = 4
_WRITE: Final = 2

Addresses = Mapping[int, Address]
"""Where a broker is: address by broker id."""


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """How many queues of a topic a broker has for readers and for writers; 0 where it does not permit either."""

    readable: int
    writable: int


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """Which brokers have queues of a topic, and where those brokers are."""

    counts: Mapping[str, QueueCounts]
    brokers: Mapping[str, Addresses]

    def readable(self) -> list[Partition]:
        """The queues that may be read, sorted."""
        return [Partition(name, id_) for name, count in sorted(self.counts.items()) for id_ in range(count.readable)]

    def writable(self) -> list[Partition]:
        """The queues that may be written to, where the broker has a master, sorted."""
        return [
            Partition(name, id_)
            for name, count in sorted(self.counts.items())
            if 0 in self.brokers.get(name, {})
            for id_ in range(count.writable)
        ]


def read_route(route: Any) -> TopicRoute:
    """Read the answer to a question for a route, as parsed JSON.

    Raises:
        ValueError: It is none, or tells what cannot be; the text says what.
    """
    fields = _object(route, "the answer")
    if fields.get("topicQueueMappingByBroker"):
        raise ValueError("it is a static topic, whose queues move between brokers; those are not supported")
    counts = dict(_queue_counts(row) for row in _list(fields, "queueDatas"))
    return TopicRoute(counts, read_brokers(_list(fields, "brokerDatas")))


def read_brokers(rows: Iterable[Any]) -> dict[str, Addresses]:
    """Read addresses of brokers, as routes and lists of clusters have them. Raises as ``read_route``."""
    found: dict[str, Addresses] = {}
    for row in rows:
        fields = _object(row, "a broker")
        name = _text(fields, "brokerName")
        addresses = _object(fields.get("brokerAddrs"), f"brokerAddrs of broker {name!r}")
        found[name] = {_broker_id(name, key): _address(name, text) for key, text in addresses.items()}
    return found


def _queue_counts(row: Any) -> tuple[str, QueueCounts]:
    fields = _object(row, "a row of queueDatas")
    name, perm = _text(fields, "brokerName"), fields.get("perm")
    if not isinstance(perm, int) or not 0 <= perm < 16:
        raise ValueError(f"perm of broker {name!r} is {perm!r}, expected a number of 4 bits")
    readable, writable = (_count(name, fields, key) for key in ("readQueueNums", "writeQueueNums"))
    return name, QueueCounts(readable if perm & _READ else 0, writable if perm & _WRITE else 0)


def _count(name: str, fields: Mapping[str, Any], key: str) -> int:
    count = fields.get(key)
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= QUEUE_COUNT_MAX:
        raise ValueError(f"{key} of broker {name!r} is {count!r}, expected 0..{QUEUE_COUNT_MAX}")
    return count


def _broker_id(name: str, key: str) -> int:
    if not key.isdecimal():
        raise ValueError(f"broker {name!r} has an address for {key!r}, expected a broker id, 0 for the master")
    return int(key)


def _address(name: str, text: Any) -> Address:
    try:
        return Address.parse(text if isinstance(text, str) else "")
    except ValueError:
        raise ValueError(f"broker {name!r} has the address {text!r}, expected host:port") from None


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} is {_shown(value)}, expected a JSON object")
    return value


def _list(fields: Mapping[str, Any], key: str) -> list[Any]:
    value = fields.get(key)
    if not isinstance(value, list):
        raise ValueError(f"{key} is {_shown(value)}, expected a JSON array")
    return value


def _text(fields: Mapping[str, Any], key: str) -> str:
    value = fields.get(key)
    if not isinstance(value, str) or not value:
        raise ValueError(f"{key} is {_shown(value)}, expected a name")
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else text[:100] + "..."
