"""One thread serves all connections: each works a few milliseconds, then the others are served. The clock is ours."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from metaq_broker.clock import ManualClock
from metaq_broker.loop_step import LoopStep
from metaq_broker.serve.block_buffers import BlockBuffers
from metaq_broker.serve.connection import READ_AHEAD_BYTES, Connection
from metaq_broker.serve.fair_queue import ALONE_S, CYCLE_S, QUANTUM_S, ROUND_S, FairQueue
from metaq_broker.serve.replies import QUESTIONS_MAX, ReplyQueue
from metaq_broker.text.session import TextSession

from metaq.protocols.text.decode import NEED_DATA, ReplyDecoder

STATS_MS = 2
PER_QUANTUM = 3
"""Answers to ``stats`` until the time of a quantum, 5 ms, is over."""


class Loop:
    """An event loop that runs what is due when it is told to, by a clock that only moves when work is done."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.time = self.clock.monotonic
        self.due: deque[Callable[[], object]] = deque()
        self.call_soon = self.due.append

    def run_once(self) -> None:
        """Run what is due now, as one round of the real one does; what that adds is for the next round."""
        for _ in range(len(self.due)):
            self.due.popleft()()


class Wire:
    """The transport of a connection whose client takes everything at once."""

    def __init__(self) -> None:
        self.sent = b""
        self.closing = False
        self.reading = True

    def get_extra_info(self, name: str) -> Any:
        return {"ssl_object": object(), "peername": ("client", 1)}.get(name)

    def write(self, data: bytes) -> None:
        self.sent += data

    def close(self) -> None:
        self.closing = True

    def is_closing(self) -> bool:
        return self.closing

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, **_limits: int) -> None:
        pass

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    @property
    def opaques(self) -> list[int]:
        """Of the replies so far."""
        decoder = ReplyDecoder()
        decoder.receive_data(self.sent)
        return [reply.opaque for reply in iter(decoder.next_reply, NEED_DATA)]  # type: ignore[union-attr]


class Services:
    """Of a broker that needs two milliseconds for every ``stats`` and every transaction command."""

    def __init__(self, clock: ManualClock) -> None:
        system = SimpleNamespace(line_bytes_max=1000, batch_bytes_max=1000)
        self.engine = SimpleNamespace(config=SimpleNamespace(system=system))
        self.report = self.transactions = self
        self.buffers = BlockBuffers()
        self.version, self.texts, self.member = "1", None, None
        self._clock = clock

    def parts(self, item: str) -> Iterator[bytes | None]:
        """An item that is a number takes so many parts."""
        for _ in range(int(item) - 1 if item.isdecimal() else 0):
            self._clock.advance(STATS_MS)
            yield None
        self._clock.advance(STATS_MS)
        yield b"STATS\r\nEND\r\n"

    def transaction(self, owner: object, command: Any, replies: ReplyQueue, visible: object = None) -> None:
        self._clock.advance(STATS_MS)
        replies.add(b"result 200 0 %d\r\n" % command.opaque)


def server(loop: Loop) -> Any:
    services: Any = Services(loop.clock)
    return SimpleNamespace(
        loop=loop,
        limits=SimpleNamespace(pipelined_requests_max=1000, output_bytes_max=1 << 20),
        sessions=lambda replies, client: TextSession(services, replies, client.peer),
        names_of=lambda transport: None,
        opened=lambda connection: None,
        holds=lambda connection, buffered_bytes: None,
        queue=FairQueue(loop),  # type: ignore[arg-type]
        step=LoopStep(loop),  # type: ignore[arg-type]
    )


def connect(shared: Any) -> tuple[Connection, Wire]:
    connection, wire = Connection(shared), Wire()
    connection.connection_made(wire)  # type: ignore[arg-type]
    return connection, wire


def stats(count: int) -> bytes:
    return b"".join(b"stats offsets %d\r\n" % opaque for opaque in range(count))


def begins(count: int) -> bytes:
    return b"".join(b"transaction TX:s:%d s BEGIN %d\r\n" % (opaque, opaque) for opaque in range(count))


def test_many_questions_of_one_client_do_not_hold_up_another() -> None:
    loop = Loop()
    shared = server(loop)
    (greedy, greedy_wire), (modest, modest_wire) = connect(shared), connect(shared)
    greedy.data_received(stats(100))
    assert greedy_wire.opaques == list(range(PER_QUANTUM))
    for round_ in range(1, 10):
        before = len(greedy_wire.opaques)
        modest.data_received(b"version %d\r\n" % round_)
        loop.run_once()
        assert modest_wire.opaques[-1] == round_
        assert len(greedy_wire.opaques) - before <= 2 * PER_QUANTUM, "the round ends with its time"


def test_one_long_answer_does_not_hold_up_another_client() -> None:
    loop = Loop()
    shared = server(loop)
    (asker, asker_wire), (modest, modest_wire) = connect(shared), connect(shared)
    asker.data_received(b"stats 50 1\r\nversion 2\r\n")
    for round_ in range(1, 200):
        before_s = loop.clock.monotonic()
        modest.data_received(b"version %d\r\n" % round_)
        loop.run_once()
        assert modest_wire.opaques[-1] == round_
        assert loop.clock.monotonic() - before_s < 1.5 * STATS_MS / 1000, "no more than a part"
    assert asker_wire.opaques == [1, 2]
    assert loop.clock.monotonic() >= 50 * STATS_MS / 1000


def test_a_round_over_busy_connections_is_short_and_has_modest_ones() -> None:
    loop = Loop()
    shared = server(loop)
    busy = [connect(shared) for _ in range(50)]
    modest, modest_wire = connect(shared)
    for connection, _ in busy:
        connection.data_received(begins(1000))
    busy_for_s = loop.clock.monotonic()
    assert busy_for_s < ROUND_S + QUANTUM_S + STATS_MS / 1000, "those who come when the time is spent wait"
    for round_ in range(1, 100):
        before = loop.clock.monotonic()
        modest.data_received(b"version %d\r\n" % round_)
        loop.run_once()
        assert modest_wire.opaques[-1] == round_
        assert loop.clock.monotonic() - before < ROUND_S + 2 * QUANTUM_S
    answered = [len(wire.opaques) for _, wire in busy]
    assert max(answered) - min(answered) <= 2 * PER_QUANTUM
    assert min(answered) >= 2


@pytest.mark.parametrize("greedy_count", [2, 20, 200])
def test_between_two_commands_of_a_client_others_have_one_or_two(greedy_count: int) -> None:
    """It asks what takes as long as one of theirs, so it has no more than they have, and has it in time."""
    loop = Loop()
    shared = server(loop)
    greedy = [connect(shared) for _ in range(greedy_count)]
    honest, honest_wire = connect(shared)
    for connection, _ in greedy:
        connection.data_received(stats(1000))
    longest_s = 0.0
    for number in range(1, 20):
        asked = loop.clock.monotonic()
        honest.data_received(b"stats offsets %d\r\n" % number)
        while not honest_wire.opaques or honest_wire.opaques[-1] != number:
            loop.run_once()
        longest_s = max(longest_s, loop.clock.monotonic() - asked)
    a_command_each = greedy_count * STATS_MS / 1000
    assert longest_s <= 2 * max(CYCLE_S, a_command_each), "the first quanta of all, and then one more of each"
    answered = [len(wire.opaques) for _, wire in greedy]
    assert min(answered) > 0
    assert max(answered) - min(answered) <= 2 * PER_QUANTUM


def test_who_was_idle_has_saved_nothing_up() -> None:
    loop = Loop()
    shared = server(loop)
    (busy, busy_wire), (late, late_wire) = connect(shared), connect(shared)
    busy.data_received(stats(1000))
    for _ in range(50):
        loop.run_once()
    before = len(busy_wire.opaques)
    late.data_received(stats(1000))
    for _ in range(10):
        loop.run_once()
    assert abs(len(busy_wire.opaques) - before - len(late_wire.opaques)) <= 2 * PER_QUANTUM


def test_requests_run_a_few_ahead_of_a_client_that_does_not_read() -> None:
    loop = Loop()
    connection, wire = connect(server(loop))
    connection.pause_writing()
    connection.data_received(stats(500))
    while loop.due:
        loop.run_once()
    assert connection._replies.unanswered == QUESTIONS_MAX
    assert connection._session.decoder.pending_bytes > 0
    connection.resume_writing()
    while loop.due:
        loop.run_once()
    assert wire.opaques == list(range(500))


def test_who_has_much_to_do_and_waits_is_not_read_from() -> None:
    loop = Loop()
    connections = [connect(shared) for shared in [server(loop)] for _ in range(10)]
    for connection, _ in connections:
        connection.data_received(begins(1000))
    assert [wire.reading for _, wire in connections] == [True] + [False] * 9
    while loop.due:
        loop.run_once()
    assert all(wire.reading and len(wire.opaques) == 1000 for _, wire in connections)


def test_sending_more_gives_no_more_quanta() -> None:
    loop = Loop()
    connection, wire = connect(server(loop))
    connection.data_received(stats(100))
    for round_ in range(1, 20):
        connection.data_received(b"stats offsets 5000\r\n")
        connection.data_received(b"stats offsets 5000\r\n")
        loop.run_once()
        assert len(wire.opaques) == PER_QUANTUM * (round_ + 1)
        assert len(loop.due) == 1


def test_a_client_beyond_its_quanta_is_not_read_from() -> None:
    loop = Loop()
    connection, wire = connect(server(loop))
    one = b"transaction TX:s:1 s BEGIN 1\r\n"
    connection.data_received(one)
    connection.data_received(one * (READ_AHEAD_BYTES // len(one)))
    assert wire.reading
    connection.data_received(one * 100)
    loop.run_once()
    assert not wire.reading
    while not wire.reading:
        loop.run_once()
    assert 0 < connection._session.decoder.pending_bytes <= READ_AHEAD_BYTES


def test_all_of_them_are_answered_in_the_end() -> None:
    loop = Loop()
    connection, wire = connect(server(loop))
    connection.data_received(stats(100))
    connection.eof_received()
    while loop.due:
        loop.run_once()
    assert wire.opaques == list(range(100))
    assert wire.closing


def test_commands_that_are_carried_out_at_once_are_bounded_as_well() -> None:
    loop = Loop()
    connection, wire = connect(server(loop))
    connection.data_received(begins(20))
    while loop.due:
        before = loop.clock.monotonic()
        loop.run_once()
        assert loop.clock.monotonic() - before < QUANTUM_S + STATS_MS / 1000
    assert wire.opaques == list(range(20))


def test_a_stop_answers_what_was_received_however_long_it_takes() -> None:
    loop = Loop()
    connection, wire = connect(server(loop))
    connection.data_received(begins(20))
    connection.finish()
    assert wire.opaques == list(range(20))
    while loop.due:
        loop.run_once()
    assert wire.closing


def test_a_stop_answers_what_was_received_behind_a_long_answer() -> None:
    loop = Loop()
    connection, wire = connect(server(loop))
    connection.data_received(b"stats 50 100\r\n" + begins(20))
    connection.finish()
    while loop.due:
        loop.run_once()
    assert wire.opaques == [100, *range(20)]
    assert wire.closing


def test_a_session_without_limit_carries_out_everything() -> None:
    clock = ManualClock()
    replies = ReplyQueue(lambda: None)
    session = TextSession(Services(clock), replies, "client")  # type: ignore[arg-type]
    session.decoder.receive_data(begins(20))
    assert session.handle(1000) is False
    assert replies.unanswered == 20


def test_a_client_is_alone_until_another_one_works_and_again_after_a_while() -> None:
    loop = Loop()
    queue = FairQueue(loop)  # type: ignore[arg-type]
    assert queue.has_one_client()
    for client, is_alone in ((1, False), (1, False), (2, False)):
        queue.charge(loop.time(), loop.time(), client)
        assert queue.has_one_client() is is_alone
    loop.clock.advance(int(ALONE_S * 1000))
    assert queue.has_one_client()
    queue.charge(loop.time(), loop.time(), 2)
    assert queue.has_one_client()
    queue.charge(loop.time(), loop.time(), 1)
    assert not queue.has_one_client()
