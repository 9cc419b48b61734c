"""A master is lost, its slave is promoted, and a query goes on there from its checkpoint."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from fix_broker import StartBroker
from metaq_harness import MicroBatches, Tree
from promoted_pair import TIMEOUTS, PromotedPair

from metaq.backends.metaq.pool import SessionPool
from metaq.backends.metaq.puts import put
from metaq.backends.metaq.session import Session
from metaq.model import Address, Message
from metaq_spark.backends.metaq.options import parse_source_options
from metaq_spark.backends.metaq.source import MetaQSource
from metaq_spark.options.table import Use
from metaq_spark.source.stream_reader import StreamReader

pytestmark = pytest.mark.process


def run(address: Address, position: Tree | None) -> tuple[Tree, list[bytes]]:
    """A run of the query to the end of what the broker has; it fails where a message is missing or another one."""
    given = {"brokers": str(address), "subscribe": "t", "startingOffsets": "earliest"}
    options, spark = parse_source_options(given, Use.STREAM_READ), MicroBatches()
    with closing(SessionPool(TIMEOUTS)) as pool:
        position, batches = spark.drain(StreamReader(MetaQSource(options, pool)), position)
    return position, [value for batch in batches for value in batch]


@pytest.mark.parametrize("role", ["pair", "slave"])
def test_each_message_is_read_once(role: str, start_broker: StartBroker, tmp_path: Path) -> None:
    pair = PromotedPair(start_broker, tmp_path, is_pair=role == "pair")
    master, slave = pair.addresses

    def put_all(address: Address, *numbers: int) -> None:
        with closing(Session.connect(address, TIMEOUTS)) as session:
            for number in numbers:
                put(session, "t", number % 2, Message(b"%d" % number))

    put_all(master, *range(10))
    position, first = run(master, None)
    put_all(master, *range(10, 15))
    pair.promote()
    put_all(slave, *range(15, 20))
    position, second = run(slave, position)
    assert sorted(map(int, first)) == list(range(10))
    assert sorted(map(int, second)) == list(range(10, 20))
    assert run(slave, position) == (position, [])
