"""A put that is refused leaves no empty topic behind."""

from __future__ import annotations

import pytest
from fix_broker import RunningBroker

from metaq.backends.metaq.puts import Receipt, encode_block, put, put_batch
from metaq.backends.metaq.session import Session
from metaq.discovery.stats import parse_offsets
from metaq.errors import BrokerError
from metaq.formats.checksum import checksum
from metaq.model import Message
from metaq.protocols.text.commands import Put, PutBatch, Stats

pytestmark = pytest.mark.process

GOOD = Message(b"good")
LARGE = b"x" * (4 << 20) + b"more than maxMessageSize"


def topics(session: Session) -> set[str]:
    return {topic for topic, _ in parse_offsets(session.ask(Stats("offsets", 0)))}


def spoilt(block: bytes) -> bytes:
    return block[:-1] + bytes([block[-1] ^ 1])


REFUSED = {
    "a wrong checksum": Put("new", 0, b"body", 0, 1, checksum(b"another")),
    "too long": Put("new", 0, LARGE, 0, 1, checksum(LARGE)),
    "a block with a wrong checksum": PutBatch("new", 0, spoilt(encode_block([GOOD])[0]), 1, 1, None),
    "a block that is cut": PutBatch("new", 0, encode_block([GOOD])[0][:-1], 1, 1, None),
    "a count that is wrong": PutBatch("new", 0, encode_block([GOOD])[0], 2, 1, None),
}


@pytest.mark.parametrize("command", REFUSED.values(), ids=list(REFUSED))
def test_no_topic_is_made_for_what_is_refused(dev_broker: RunningBroker, command: Put | PutBatch) -> None:
    session = Session.connect(dev_broker.address)
    put(session, "old", 0, GOOD)
    with pytest.raises(BrokerError):
        session.ask(command)
    assert topics(session) == {"old"}
    assert not (dev_broker.data / "new-0").exists()
    assert put(session, "new", 0, GOOD).offset == 0
    assert topics(session) == {"old", "new"}
    with pytest.raises(BrokerError):
        session.ask(command)
    session.close()


def test_the_first_block_of_a_topic_is_stored(dev_broker: RunningBroker) -> None:
    session = Session.connect(dev_broker.address)
    first = put_batch(session, "new", 0, *encode_block([GOOD] * 3))
    assert isinstance(first, Receipt)
    assert first.offset == 0
    assert topics(session) == {"new"}
    session.close()
