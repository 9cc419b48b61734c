"""What all workers share: a thread of its own, a connection that is made again when it is lost, the record of puts.

A worker never gives up: broker gone, suspended, full, back again are all the same to it. What it cannot explain it
reports as an oddity; what was not answered it leaves unknown.
"""

from __future__ import annotations

import itertools
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final, NamedTuple

from faults.history import History, Put, Sent
from faults.payload import PAYLOAD_BYTES_MIN, MessageKey, make_payload
from faults.stored import PartitionKey
from metaq.backends.metaq.session import Session
from metaq.errors import ConnectionFailed, DeadlineExceeded, ProtocolError
from metaq.formats.checksum import checksum
from metaq.formats.frames import HEADER_BYTES, encode_body, encode_frame
from metaq.model import Address, Message
from metaq.net.transport import Timeouts
from metaq.protocols.text.commands import Put as PutCommand
from metaq.protocols.text.commands import Reply, Result

RECONNECT_INTERVAL_S: Final = 0.01
UNSURE_REFUSALS: Final = ("read-only", "is known after a restart", "is committed, and readable once")
"""Parts of refusals after which something may be stored all the same."""


@dataclass(slots=True)
class SharedWork:
    """What the workers of one broker share. Set ``over`` to send them home; they finish what they have begun."""

    address: Address
    history: History
    partition_keys: Sequence[PartitionKey]
    timeouts: Timeouts = Timeouts(5.0, 20.0)  # noqa: RUF009  a frozen value
    refusals_expected: bool = False
    """Whether the broker may refuse correct commands: its disk is full."""
    retention: bool = False
    """Whether the broker deletes old segments, so that slow readers are sent onwards."""
    rocketmq: Address | None = None
    """Where the broker serves RocketMQ's clients, if it does."""
    over: threading.Event = field(default_factory=threading.Event)


class PlannedMessage(NamedTuple):
    """A message to put: how its body and flag look, and what its frame must be."""

    sent: Sent
    flag: int
    body: bytes
    payload: bytes

    def frame(self) -> bytes:
        """Return it as a frame of a batched put."""
        return encode_frame(0, self.flag, self.body, self.sent.checksum)


class Worker(ABC):
    """One way to use the broker. Subclasses say in ``visit`` how to connect and what to do."""

    def __init__(self, name: str, shift: SharedWork, seed: str) -> None:
        """``name`` is 1 to 24 of ``a-z0-9.-``, unique in the history; all choices come from ``seed`` and ``name``."""
        self.name = name
        self.shift = shift
        self.history = shift.history
        self.random = Random(f"{seed}/{name}")
        self._connections = itertools.count(1)
        self._letters = itertools.count()
        self.lane = name

    def run(self) -> None:
        """Work until the shift is over."""
        while not self.shift.over.is_set():
            try:
                self.visit(f"{self.name}#{next(self._connections)}")
            except (ConnectionFailed, DeadlineExceeded):
                self.shift.over.wait(RECONNECT_INTERVAL_S)
            except ProtocolError as error:
                self.history.odd("malformed reply", f"{self.lane}: {error}")

    @abstractmethod
    def visit(self, lane: str) -> None:
        """Connect, take ``lane`` as the connection's name, and use it until the shift is over.

        Raises:
            ConnectionFailed, DeadlineExceeded, ProtocolError: ``run`` copes with them.
        """

    def letter(self, length: int, attribute: str | None = None) -> PlannedMessage:
        """Write a new message with a payload of about ``length`` bytes."""
        key = MessageKey(self.name, next(self._letters))
        payload = make_payload(key, max(length, PAYLOAD_BYTES_MIN))
        flag, body = encode_body(Message(payload, attribute))
        return PlannedMessage(Sent(key, flag, checksum(body), HEADER_BYTES + len(body)), flag, body, payload)

    def small_letter(self) -> PlannedMessage:
        """Write a message of 64 to 1,000 bytes, now and then with an attribute."""
        attribute = self.random.choice((None, None, None, "", "kind", "größe"))
        return self.letter(self.random.randint(PAYLOAD_BYTES_MIN, 1000), attribute)

    def partition_key(self) -> PartitionKey:
        """Choose a partition."""
        return self.random.choice(self.shift.partition_keys)


class MetaqWorker(Worker):
    """One that speaks MetaQ's protocol. Subclasses say what to do with a connection in ``serve``."""

    def visit(self, lane: str) -> None:
        session = Session.connect(self.shift.address, self.shift.timeouts)
        self.lane = lane
        try:
            self.serve(session)
        finally:
            session.close()

    @abstractmethod
    def serve(self, session: Session) -> None:
        """Use the connection until the shift is over; errors of the connection may escape."""

    def settle(self, put: Put, reply: Reply) -> None:
        """Write down the answer to a put that the broker should have taken."""
        if isinstance(reply, Result) and reply.code == 200:
            self._acknowledged(put, reply.text)
        elif isinstance(reply, Result):
            self.history.put_refused(put, reply.text, definite=is_definite(reply.text))
            if not self.shift.refusals_expected:
                self.history.odd("refused put", f"{put}: {reply.code} {reply.text}")
        else:
            self.history.odd("wrong reply", f"{put}: {len(reply.data)} bytes of messages came")

    def _acknowledged(self, put: Put, text: str) -> None:
        try:
            message_id, index, offset = map(int, text.split(" "))
        except ValueError:
            self.history.odd("malformed receipt", f"{put}: {text!r}")
            return
        self.history.put_acknowledged(put, message_id, index, offset)


def put_command(partition_key: PartitionKey, letter: PlannedMessage) -> PutCommand:
    """Return the command that puts a letter into a partition."""
    return PutCommand(partition_key.topic, partition_key.index, letter.body, letter.flag, 0, letter.sent.checksum)


def is_definite(text: str) -> bool:
    """Whether a refusal with this text says that nothing was stored, now or later."""
    return not any(part in text for part in UNSURE_REFUSALS)
