"""One attacker: one conversation after another, each over a connection of its own, each ended within a deadline.

A proper conversation has only commands that must be answered: the answers must come, in order. In a daring one,
anything may be sent; whatever the server answers must be well-formed, and when the attacker has closed its side, the
server must close, too.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from random import Random
from typing import Final, NamedTuple, Protocol

from faults.fuzz.grammar import Grammar
from faults.fuzz.mutations import mutate, random_cuts
from metaq.errors import ProtocolError
from metaq.model import Address
from metaq.protocols.text.commands import Filled
from metaq.protocols.text.decode import NEED_DATA, ReplyDecoder

DEADLINE_S: Final = 20.0
DISCONNECT_CHANCE: Final = 0.1
READ_BYTES: Final = 1 << 18
KEPT: Final = 20
"""Number of conversations whose bytes are kept for the report."""


class Manner(NamedTuple):
    """The style of a conversation: its length, how often a field is wrong, how often a command's bytes are altered."""

    phrases_max: int
    edge_chance: float
    mutation_chance: float

    @property
    def proper(self) -> bool:
        return not (self.edge_chance or self.mutation_chance)


# The more daring, the shorter: the first invalid command ends a conversation.
MANNERS: Final = (Manner(80, 0, 0), Manner(80, 0.002, 0.005), Manner(20, 0.02, 0.05), Manner(6, 0.1, 0.4))


class FuzzFinding(Exception):
    """The server broke a rule of the protocol or of its limits."""


class AnyPhrase(Protocol):
    """A request of either protocol: its bytes, and the number that its answer must have."""

    @property
    def data(self) -> bytes: ...

    @property
    def opaque(self) -> int | None: ...


class Answers(Protocol):
    """Decodes answers. Raises ``ProtocolError``."""

    @property
    def pending_bytes(self) -> int: ...

    def receive(self, chunk: bytes) -> Sequence[int | None]:
        """Return the numbers of the answers that ``chunk`` completes."""


class Attacker(ABC):
    """What it sends depends only on ``seed``, not on the answers. ``server`` names the server in findings.

    A subclass makes the phrases and decodes the answers of one protocol.
    """

    def __init__(self, seed: str, address: Address, server: str) -> None:
        self.seed, self._address, self._server = seed, address, server
        self.sent_phrases = self.conversations = self.answers = 0
        self.recent: deque[bytes] = deque(maxlen=KEPT)
        self.finding: str | None = None
        self._random = Random(seed)

    @abstractmethod
    def _proper(self) -> AnyPhrase:
        """Return a phrase that must be answered."""

    @abstractmethod
    def _daring(self, edge_chance: float) -> AnyPhrase:
        ...

    @abstractmethod
    def _altered(self, data: bytes) -> bytes:
        """Return the bytes of a phrase with an alteration."""

    @abstractmethod
    def _decoder(self) -> Answers:
        ...

    def run(self, phrases: int, stop: threading.Event) -> None:
        """Send ``phrases`` phrases, or fewer if ``stop`` is set. A finding ends the run and is in ``finding``."""
        try:
            while self.sent_phrases < phrases and not stop.is_set():
                self._converse()
        except FuzzFinding as finding:
            self.finding = f"attacker {self.seed}, conversation {self.conversations}: {finding}"
            stop.set()

    def _converse(self) -> None:
        self.conversations += 1
        manner = self._random.choice(MANNERS)
        phrases = [self._phrase(manner) for _ in range(self._random.randint(1, manner.phrases_max))]
        data = b"".join(self._bytes_of(phrase, manner) for phrase in phrases)
        parts = list(random_cuts(self._random, data))
        disconnect = not manner.proper and self._random.random() < DISCONNECT_CHANCE
        self.recent.append(data)
        self.sent_phrases += len(phrases)
        with self._connection() as connection:
            if disconnect:
                break_off(connection, parts, self._random)
            else:
                opaques = self._exchange(connection, parts, len(phrases) if manner.proper else 0)
                self.answers += len(opaques)
                if manner.proper:
                    self._check_answers(phrases, opaques)

    def _phrase(self, manner: Manner) -> AnyPhrase:
        return self._proper() if manner.proper else self._daring(manner.edge_chance)

    def _bytes_of(self, phrase: AnyPhrase, manner: Manner) -> bytes:
        if manner.proper or self._random.random() >= manner.mutation_chance:
            return phrase.data
        return self._altered(phrase.data)

    def _connection(self) -> socket.socket:
        try:
            connection = socket.create_connection((self._address.host, self._address.port), DEADLINE_S)
        except OSError as error:
            raise FuzzFinding(f"the {self._server} accepts no connection: {error}") from error
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _exchange(self, connection: socket.socket, parts: Sequence[bytes], awaited: int) -> list[int | None]:
        """Send everything, wait for the required answers, then read until the server closes; return their opaques."""
        decoder, opaques = self._decoder(), list[int | None]()
        try:
            for part in parts:
                connection.sendall(part)
            while len(opaques) < awaited and (chunk := connection.recv(READ_BYTES)):
                opaques += decoder.receive(chunk)
            connection.shutdown(socket.SHUT_WR)
        except TimeoutError:
            raise FuzzFinding(f"the {self._server} took or gave no bytes for {DEADLINE_S:g} s") from None
        except ProtocolError as error:
            raise FuzzFinding(f"malformed answer: {error}") from error
        except OSError:
            pass  # closed already, perhaps after an answer
        try:
            while chunk := connection.recv(READ_BYTES):
                opaques += decoder.receive(chunk)
        except TimeoutError:
            raise FuzzFinding(f"the {self._server} neither answered nor closed for {DEADLINE_S:g} s") from None
        except ProtocolError as error:
            raise FuzzFinding(f"malformed answer: {error}") from error
        except ConnectionError:
            return opaques  # it closed while bytes were in transit
        if decoder.pending_bytes:
            raise FuzzFinding(f"the {self._server} closed inside an answer after {decoder.pending_bytes} bytes of it")
        return opaques

    def _check_answers(self, phrases: Sequence[AnyPhrase], got: Sequence[int | None]) -> None:
        expected = [phrase.opaque for phrase in phrases]
        if expected != got:
            missing = [phrase.data[:200] for phrase in phrases if phrase.opaque not in got]
            raise FuzzFinding(f"{len(expected)} proper requests, {len(got)} answers; not answered: {missing[:3]}")


class BrokerAttacker(Attacker):
    """An attacker of a broker's MetaQ port."""

    def __init__(self, seed: str, address: Address) -> None:
        super().__init__(seed, address, "broker")
        self._grammar = Grammar(self._random)

    def _proper(self) -> AnyPhrase:
        return self._grammar.proper()

    def _daring(self, edge_chance: float) -> AnyPhrase:
        return self._grammar.daring(edge_chance)

    def _altered(self, data: bytes) -> bytes:
        return mutate(self._random, data)

    def _decoder(self) -> Answers:
        return _TextAnswers()


class _TextAnswers:
    def __init__(self) -> None:
        self._decoder = ReplyDecoder()

    @property
    def pending_bytes(self) -> int:
        return self._decoder.pending_bytes

    def receive(self, chunk: bytes) -> list[int | None]:
        opaques = list[int | None]()
        self._decoder.receive_data(chunk)
        while (reply := self._decoder.next_reply()) is not NEED_DATA:
            assert not isinstance(reply, Filled)  # no buffers were offered
            opaques.append(reply.opaque)
        return opaques


def break_off(connection: socket.socket, parts: Sequence[bytes], chance: Random) -> None:
    """Send a part of the bytes, at least one part, and have the connection reset when it is closed."""
    with contextlib.suppress(OSError):
        for part in parts[: chance.randint(1, len(parts))] if parts else ():
            connection.sendall(part)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
