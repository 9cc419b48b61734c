"""A master is lost, its slave is promoted, and programs start anew there: nothing is lost and nothing comes again."""

from __future__ import annotations

from pathlib import Path

import pytest
from fix_broker import DEADLINE_S, StartBroker
from promoted_pair import PromotedPair

from metaq import MetaQ
from metaq.client.offsets import FileOffsets

pytestmark = pytest.mark.process


@pytest.fixture(params=["pair", "slave"])
def pair(request: pytest.FixtureRequest, start_broker: StartBroker, tmp_path: Path) -> PromotedPair:
    return PromotedPair(start_broker, tmp_path, is_pair=request.param == "pair")


def client(pair: PromotedPair, which: int) -> MetaQ:
    """A client of the master or of the slave."""
    return MetaQ(str(pair.addresses[which]))


def test_an_ordered_producer_sends_what_waits_once(pair: PromotedPair, tmp_path: Path) -> None:
    partitions, spool = {"t": "4:1"}, tmp_path / "spool"
    with client(pair, 0) as mq, mq.ordered_producer(partitions, spool, retry_s=1000) as producer:
        assert all(producer.send("t", f"{number}") is not None for number in range(20))
        pair.promote()
        assert [producer.send("t", f"{number}") for number in range(20, 40)] == [None] * 20
    with client(pair, 1) as mq:
        with mq.ordered_producer(partitions, spool) as producer:
            assert producer.recover(DEADLINE_S)
            assert producer.send("t", "40") is not None
        with mq.ordered_producer(partitions, spool) as producer:
            assert producer.spooled == {}
        assert [message.data for message in mq.browse("t")] == [b"%d" % number for number in range(41)]


def test_a_group_goes_on_where_it_was(pair: PromotedPair, tmp_path: Path) -> None:
    read: list[bytes] = []

    def read_until(which: int, count: int) -> None:
        offsets = FileOffsets(tmp_path / "offsets")
        with client(pair, which) as mq, mq.consumer("g", ["t"], start="earliest", offsets=offsets) as consumer:
            while len(read) < count:
                read.extend(message.data for message in consumer.fetch(1))
            assert count < 20 or consumer.fetch(1, timeout=0.2) == []

    with client(pair, 0) as mq:
        producer = mq.producer()
        for number in range(20):
            producer.send("t", f"{number}")
    read_until(0, 12)
    pair.promote()
    read_until(1, 20)
    assert sorted(read) == sorted(b"%d" % number for number in range(20))
