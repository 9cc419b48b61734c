"""The pool: idle sessions are used again while they are good, in the process that opened them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence

import pytest
from fix_client import ADDRESS, LoopbackPeer
from forked import in_child

from metaq.backends.metaq.pool import IDLE_S_MAX, SessionPool, shared_pool
from metaq.backends.metaq.session import Session
from metaq.errors import BrokerError, ConnectionFailed
from metaq.model import Address
from metaq.net.transport import DEFAULT_TIMEOUTS
from metaq.protocols.text.commands import Get, Stats, Version
from metaq.testing.memory import MemoryBroker, MemoryTransport
from metaq.testing.scripted import Expect, Say, Step

OTHER = Address("127.0.0.1", 8124)


class Bench:
    """A pool over two brokers in memory."""

    def __init__(self, idle_max_per_address: int = 8) -> None:
        self.broker = MemoryBroker({"t": 1})
        self.transport = MemoryTransport({ADDRESS: self.broker, OTHER: MemoryBroker({})})
        self.clock = self.transport.clock
        self.pool = SessionPool(DEFAULT_TIMEOUTS, self.transport, self.clock, idle_max_per_address)

    def use(self, address: Address = ADDRESS) -> Session:
        with self.pool.lease(address) as session:
            session.ask(Version(0))
        return session


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_session_is_used_again_for_the_same_address_only(bench: Bench) -> None:
    first = bench.use()
    assert bench.use() is first
    assert bench.use(OTHER) is not first
    assert bench.transport.connections == 2
    assert repr(bench.pool) == f"<SessionPool idle {{{ADDRESS}: 1, {OTHER}: 1}}>"


def test_leases_at_the_same_time_get_sessions_of_their_own(bench: Bench) -> None:
    with bench.pool.lease(ADDRESS) as first, bench.pool.lease(ADDRESS) as second:
        assert first is not second
    assert bench.pool.idle_count(ADDRESS) == 2


def test_no_more_than_the_maximum_stays_idle() -> None:
    bench = Bench(idle_max_per_address=1)
    with bench.pool.lease(ADDRESS) as first, bench.pool.lease(ADDRESS) as second:
        pass
    assert bench.pool.idle_count(ADDRESS) == 1
    assert {first.closed, second.closed} == {True, False}


@pytest.mark.parametrize("error", [BrokerError(ADDRESS, "x", 500, "x"), KeyboardInterrupt()])
def test_a_session_is_closed_when_its_user_failed(bench: Bench, error: BaseException) -> None:
    with pytest.raises(type(error)), bench.pool.lease(ADDRESS) as session:
        raise error
    assert session.closed
    assert bench.pool.idle_count(ADDRESS) == 0


def leasing(bench: Bench, *, asking: bool = False) -> Generator[Session]:
    with bench.pool.lease(ADDRESS) as session:
        if asking:
            session.post(Version(0))
        yield session


@pytest.mark.parametrize("asking", [False, True])
def test_a_generator_that_ends_early_gives_its_session_back_unless_it_asks(bench: Bench, asking: bool) -> None:
    generator = leasing(bench, asking=asking)
    session = next(generator)
    generator.close()
    assert (session.closed, bench.pool.idle_count(ADDRESS)) == (asking, 0 if asking else 1)


def test_a_generator_may_end_while_another_session_is_given_back(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a garbage collection at any moment, also in the pool's own code."""
    generator, clock_s = leasing(bench), bench.clock.monotonic

    def collect() -> float:
        monkeypatch.undo()
        generator.close()
        return clock_s()

    with bench.pool.lease(ADDRESS):
        next(generator)
        monkeypatch.setattr(bench.clock, "monotonic", collect)
    assert bench.pool.idle_count(ADDRESS) == 2


def _leave_a_reply(session: Session) -> None:
    session.post(Version(0))


def _abandon_a_reply(session: Session) -> None:
    session.abandon(session.post(Version(0)))


def _close(session: Session) -> None:
    session.close()


@pytest.mark.parametrize("leave", [_leave_a_reply, _abandon_a_reply, _close])
def test_a_session_in_the_middle_of_something_is_not_kept(bench: Bench, leave: Callable[[Session], None]) -> None:
    with bench.pool.lease(ADDRESS) as session:
        leave(session)
    assert session.closed
    assert bench.pool.idle_count(ADDRESS) == 0


def test_a_session_that_the_broker_closed_meanwhile_is_replaced(bench: Bench) -> None:
    old = bench.use()
    bench.broker.kill()
    bench.broker.start()
    assert bench.use() is not old
    assert old.closed


def test_a_session_idle_for_too_long_is_replaced_before_the_broker_does_it(bench: Bench) -> None:
    old = bench.use()
    bench.clock.advance(IDLE_S_MAX - 1)
    assert bench.use() is old
    bench.clock.advance(IDLE_S_MAX)
    assert bench.use() is not old


def test_a_broker_that_is_away_is_an_error_of_the_lease(bench: Bench) -> None:
    bench.broker.kill()
    with pytest.raises(ConnectionFailed, match=str(ADDRESS)), bench.pool.lease(ADDRESS):
        pytest.fail("there is nothing to lease")


def test_close_drops_idle_sessions_and_the_pool_goes_on(bench: Bench) -> None:
    old = bench.use()
    bench.pool.close()
    assert old.closed
    assert bench.use() is not old


def test_what_comes_back_to_a_closed_pool_is_closed(bench: Bench) -> None:
    with bench.pool.lease(ADDRESS) as session:
        bench.pool.close()
        assert not session.closed
    assert session.closed
    assert bench.use().closed
    assert bench.pool.idle_count(ADDRESS) == 0


def test_a_pool_that_has_ended_leases_nothing(bench: Bench) -> None:
    with bench.pool.lease(ADDRESS) as session:
        bench.pool.end()
    assert session.closed
    with pytest.raises(ValueError, match="the client is closed"):
        bench.use()


def test_a_negative_maximum_is_refused() -> None:
    with pytest.raises(ValueError, match="idle_max_per_address=-1"):
        SessionPool(idle_max_per_address=-1)


def test_the_shared_pool_is_one() -> None:
    assert shared_pool() is shared_pool()


def test_many_threads_share_a_pool(bench: Bench) -> None:
    answers: list[str] = []

    def work() -> None:
        for _ in range(50):
            with bench.pool.lease(ADDRESS) as session:
                answers.append(session.ask(Stats("", 0)))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 400
    assert len(set(answers)) == 1
    assert bench.transport.connections == len({id(s) for s in _idle(bench.pool)}) <= 8


def _idle(pool: SessionPool) -> list[Session]:
    return [session for kept in pool._idle().sessions.values() for session, _ in kept]


# ---- forked children (a Spark worker is one)


def test_a_child_opens_its_own_sessions_and_drops_the_inherited_unharmed(bench: Bench) -> None:
    parents = bench.use()
    bytes_before = len(bench.broker.commands)

    def child() -> bool:
        mine = bench.use()
        inherited_unharmed = parents.closed and len(bench.broker.commands) == bytes_before + 1
        return mine is not parents and inherited_unharmed and bench.pool.idle_count(ADDRESS) == 1

    assert in_child(child)
    assert bench.use() is parents


def test_a_lock_taken_before_the_fork_does_not_block_the_child(bench: Bench) -> None:
    bench.use()
    with bench.pool._idle().lock:
        assert in_child(lambda: bench.use() is not None)


def test_a_block_in_the_child_does_not_keep_the_parents_session(bench: Bench) -> None:
    lease = bench.pool.lease(ADDRESS)
    session = lease.__enter__()

    def child_leaves_the_block() -> bool:
        lease.__exit__(None, None, None)
        return session.closed and bench.pool.idle_count(ADDRESS) == 0

    assert in_child(child_leaves_the_block)
    assert not session.closed
    lease.__exit__(None, None, None)
    assert bench.use() is session


def test_get_on_a_pooled_session_after_a_refusal_still_works(bench: Bench) -> None:
    with bench.pool.lease(ADDRESS) as session:
        reply = session.call(Get("t", "g", 0, 0, 10, 0))
    assert reply.opaque == 1
    assert bench.use() is session


def test_a_child_that_drops_a_socket_leaves_the_parents_connection(
    loopback: Callable[[Sequence[Step]], LoopbackPeer],
) -> None:
    reply = b"result 200 1 %d\r\nv"
    peer = loopback([Expect(b"version 1\r\n"), Say(reply % 1), Expect(b"version 2\r\n"), Say(reply % 2)])
    pool = SessionPool()
    with pool.lease(peer.address) as session:
        session.ask(Version(0))
    assert in_child(lambda: pool.idle_count(peer.address) == 0 and session.closed)
    with pool.lease(peer.address) as again:
        assert again is session
        assert again.ask(Version(0)) == "v"
    pool.close()
