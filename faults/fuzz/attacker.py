"""One attacker: one conversation after another, each over a connection of its own, each ended within a deadline.

A proper conversation has only commands that must be answered: the answers must come, in order. In a daring one,
anything may be sent; whatever the broker answers must be well-formed, and when the attacker has closed its side, the
broker must close, too.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections import deque
from collections.abc import Sequence
from random import Random
from typing import Final, NamedTuple

from faults.fuzz.grammar import Grammar, Phrase
from faults.fuzz.mutations import mutate, random_cuts
from metaq.errors import ProtocolError
from metaq.model import Address
from metaq.protocols.text.commands import Filled, Reply
from metaq.protocols.text.decode import NEED_DATA, ReplyDecoder

DEADLINE_S: Final = 20.0
DISCONNECT_CHANCE: Final = 0.1
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
    """The broker broke a rule of the protocol or of its limits."""


class Attacker:
    """What it sends depends only on ``seed``, not on the broker's answers."""

    def __init__(self, seed: str, address: Address) -> None:
        self.seed = seed
        self.sent_phrases = 0
        self.conversations = 0
        self.answers = 0
        self.recent: deque[bytes] = deque(maxlen=KEPT)
        self.finding: str | None = None
        self._random = Random(seed)
        self._grammar = Grammar(self._random)
        self._address = address

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
        data = b"".join(self._altered(phrase, manner) for phrase in phrases)
        parts = list(random_cuts(self._random, data))
        disconnect = not manner.proper and self._random.random() < DISCONNECT_CHANCE
        self.recent.append(data)
        self.sent_phrases += len(phrases)
        with self._connection() as connection:
            if disconnect:
                break_off(connection, parts, self._random)
            else:
                replies = self._exchange(connection, parts)
                self.answers += len(replies)
                if manner.proper:
                    _check_answers(phrases, replies)

    def _phrase(self, manner: Manner) -> Phrase:
        return self._grammar.proper() if manner.proper else self._grammar.daring(manner.edge_chance)

    def _altered(self, phrase: Phrase, manner: Manner) -> bytes:
        if manner.proper or self._random.random() >= manner.mutation_chance:
            return phrase.data
        return mutate(self._random, phrase.data)

    def _connection(self) -> socket.socket:
        try:
            connection = socket.create_connection((self._address.host, self._address.port), DEADLINE_S)
        except OSError as error:
            raise FuzzFinding(f"the broker takes no connection: {error}") from error
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _exchange(self, connection: socket.socket, parts: Sequence[bytes]) -> list[Reply]:
        try:
            for part in parts:
                connection.sendall(part)
            connection.shutdown(socket.SHUT_WR)
        except TimeoutError:
            raise FuzzFinding(f"the broker took no bytes for {DEADLINE_S:g} s") from None
        except OSError:
            pass  # closed already, perhaps after an answer
        return self._read(connection)

    def _read(self, connection: socket.socket) -> list[Reply]:
        decoder = ReplyDecoder()
        replies: list[Reply] = []
        try:
            while chunk := connection.recv(1 << 18):
                decoder.receive_data(chunk)
                while (reply := decoder.next_reply()) is not NEED_DATA:
                    assert not isinstance(reply, Filled)  # no buffers were offered
                    replies.append(reply)
        except TimeoutError:
            raise FuzzFinding(f"the broker neither answered nor closed for {DEADLINE_S:g} s") from None
        except ProtocolError as error:
            raise FuzzFinding(f"malformed answer: {error}") from error
        except ConnectionError:
            return replies  # it closed while bytes were in transit
        if decoder.pending_bytes:
            raise FuzzFinding(f"the broker closed inside an answer, {decoder.pending_bytes} bytes of it came")
        return replies


def break_off(connection: socket.socket, parts: Sequence[bytes], chance: Random) -> None:
    """Send a part of the bytes, at least one part, and have the connection reset when it is closed."""
    with contextlib.suppress(OSError):
        for part in parts[: chance.randint(1, len(parts))] if parts else ():
            connection.sendall(part)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _check_answers(phrases: Sequence[Phrase], replies: Sequence[Reply]) -> None:
    expected, got = [phrase.opaque for phrase in phrases], [reply.opaque for reply in replies]
    if expected != got:
        missing = [phrase.data[:200] for phrase in phrases if phrase.opaque not in got]
        raise FuzzFinding(f"{len(expected)} proper commands, {len(got)} answers; not answered: {missing[:3]}")
