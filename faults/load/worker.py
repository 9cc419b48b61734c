"""Base of all workers: a thread, a connection that is opened again when it is lost, and the record of puts.

A worker never gives up, whether the broker is down, suspended or full. Unexpected answers are recorded as oddities, and
unanswered operations stay unknown.
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
UNSURE_REFUSALS: Final = (
    "read-only",
    "is known after a restart",
    "is committed, and readable once",
    "it may be stored",
)
"""Parts of refusals after which the message may be stored nevertheless."""


@dataclass(slots=True)
class SharedWork:
    """State that the workers of one broker share. Set ``over`` to end them; they finish what they have begun."""

    address: Address
    history: History
    partition_keys: Sequence[PartitionKey]
    timeouts: Timeouts = Timeouts(5.0, 20.0)  # noqa: RUF009  a frozen value
    refusals_expected: bool = False
    """Whether the broker may refuse correct commands: its disk is full."""
    retention: bool = False
    """Whether the broker deletes old segments, so that slow readers skip messages."""
    rocketmq: Address | None = None
    """The address for RocketMQ's clients, if the broker serves them."""
    over: threading.Event = field(default_factory=threading.Event)


class PlannedMessage(NamedTuple):
    """A message to put: its body and flag, and what its frame must be."""

    sent: Sent
    flag: int
    body: bytes
    payload: bytes

    def frame(self) -> bytes:
        """Return it as a frame of a batched put."""
        return encode_frame(0, self.flag, self.body, self.sent.checksum)


class Worker(ABC):
    """One way to use the broker. Subclasses implement ``visit``."""

    def __init__(self, name: str, shift: SharedWork, seed: str) -> None:
        """``name`` is 1 to 24 of ``a-z0-9.-``, unique in the history; all choices follow from ``seed`` and ``name``."""
        self.name = name
        self.shift = shift
        self.history = shift.history
        self.random = Random(f"{seed}/{name}")
        self._connections = itertools.count(1)
        self._letters = itertools.count()
        self.lane = name

    def run(self) -> None:
        """Work until the shared ``over`` is set."""
        while not self.shift.over.is_set():
            try:
                self.visit(f"{self.name}#{next(self._connections)}")
            except (ConnectionFailed, DeadlineExceeded):
                self.shift.over.wait(RECONNECT_INTERVAL_S)
            except ProtocolError as error:
                self.history.odd("malformed reply", f"{self.lane}: {error}")

    @abstractmethod
    def visit(self, lane: str) -> None:
        """Connect, use ``lane`` as the connection's name, and work until ``over`` is set.

        Raises:
            ConnectionFailed, DeadlineExceeded, ProtocolError: ``run`` handles them.
        """

    def letter(self, length: int, attribute: str | None = None) -> PlannedMessage:
        """Return a new message with a payload of about ``length`` bytes."""
        key = MessageKey(self.name, next(self._letters))
        payload = make_payload(key, max(length, PAYLOAD_BYTES_MIN))
        flag, body = encode_body(Message(payload, attribute))
        return PlannedMessage(Sent(key, flag, checksum(body), HEADER_BYTES + len(body)), flag, body, payload)

    def small_letter(self) -> PlannedMessage:
        """Return a message of 64 to 1,000 bytes, sometimes with an attribute."""
        attribute = self.random.choice((None, None, None, "", "kind", "größe"))
        return self.letter(self.random.randint(PAYLOAD_BYTES_MIN, 1000), attribute)

    def partition_key(self) -> PartitionKey:
        return self.random.choice(self.shift.partition_keys)


class MetaqWorker(Worker):
    """A worker with MetaQ's protocol. Subclasses implement ``serve``."""

    def visit(self, lane: str) -> None:
        session = Session.connect(self.shift.address, self.shift.timeouts)
        self.lane = lane
        try:
            self.serve(session)
        finally:
            session.close()

    @abstractmethod
    def serve(self, session: Session) -> None:
        """Use the connection until ``over`` is set; errors of the connection may be raised."""

    def settle(self, put: Put, reply: Reply) -> None:
        """Record the answer to a put that the broker should have accepted."""
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
    return PutCommand(partition_key.topic, partition_key.index, letter.body, letter.flag, 0, letter.sent.checksum)


def is_definite(text: str) -> bool:
    """Return whether a refusal with this text says that nothing was stored, now or later."""
    return not any(part in text for part in UNSURE_REFUSALS)
