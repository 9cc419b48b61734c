"""The transaction journal as a replicated stream: what a leader acknowledged is there after an election."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from metaq_broker.log.engine.outcomes import Refusal
from metaq_broker.log.streams import lost_found
from metaq_broker.log.streams.stream import JOURNAL, StreamBytes, StreamDamaged, StreamRefused
from metaq_broker.transactions import stalled
from metaq_broker.transactions.interfaces import PrepareVote
from metaq_broker.transactions.manager import TransactionManager
from metaq_broker.transactions.outcomes import OutcomeUnknown, TransactionRefused
from pair_disks import PairDisk, copy, durable, follow, until_true
from tx_harness import local, xid
from waiting import in_loop

X1, X2, X3 = xid("b1"), xid("b2"), xid("b3")


async def elected(disk: PairDisk, epoch: int, *, alone: bool = True) -> TransactionManager:
    await disk.lead(epoch)
    transactions = disk.serve()
    await disk.commit.drain()
    disk.alone = alone
    return transactions


def begun(
    transactions: TransactionManager, key: Any, bodies: list[bytes], topic: str = "t", partition: int = 0
) -> None:
    transactions.begin("A", key)
    for body in bodies:
        transactions.put("A", key, topic, partition, 0, None, body)


async def prepared(transactions: TransactionManager, key: Any, bodies: list[bytes]) -> None:
    answers: list[object] = []
    begun(transactions, key, bodies)
    transactions.prepare(key, answers.append)
    await until_true(lambda: bool(answers))
    assert answers == [PrepareVote.OK]


async def done(answers: list[Any], count: int = 1) -> list[Any]:
    await until_true(lambda: len(answers) >= count)
    return answers


async def copied(leader: PairDisk, follower: PairDisk) -> None:
    """Carry what the leader has written in all streams."""
    for stream in leader.streams.all():
        if (origin := stream.origin) is None:
            continue  # nothing of it was synced
        if follower.streams.get(stream.name) is None:
            await follower.streams.adopt({stream.name: (origin, leader.streams.epochs(stream.name))})
        elif follower.stream(stream.name).end < origin.start:  # the leader has removed what comes next
            await follow(leader, follower)
        await copy(stream, follower.stream(stream.name), stream.end, 1000)


@in_loop
async def test_prepared_branches_decisions_and_commits_are_there_after_an_election(tmp_path: Path) -> None:
    one, other = PairDisk(tmp_path / "a"), PairDisk(tmp_path / "b")
    first = await elected(one, 1)
    await prepared(first, X1, [b"decided"])
    await prepared(first, X2, [b"prepared"])
    answers: list[Any] = []
    first.decide("query", 7, [X1], answers.append)
    begun(first, local(1), [b"committed", b"too"])
    first.commit(local(1), True, "A", answers.append)
    await done(answers, 2)
    await follow(one, other)
    assert one.journal.durable_end == other.journal.durable_end
    second = await elected(other, 2)
    assert second.recover(None) == [X2]
    found = second.decision("query")
    assert found is not None
    assert (found.batch_id, found.branches) == (7, (X1,))
    second.commit(X2, False, "B", answers.append)
    await done(answers, 3)
    assert answers[2] is None
    assert sorted(other.bodies()) == [b"committed", b"decided", b"prepared", b"too"]
    await one.close()
    await other.close()


@in_loop
async def test_nothing_is_acknowledged_before_the_set_has_it(tmp_path: Path) -> None:
    leader = PairDisk(tmp_path)
    transactions = await elected(leader, 1, alone=False)
    votes: list[Any] = []
    begun(transactions, X1, [b"m"])
    transactions.prepare(X1, votes.append)
    await until_true(lambda: leader.journal.durable_end == leader.journal.end)
    assert votes == []
    assert leader.journal.confirmed_end < leader.journal.durable_end
    leader.journal.confirm(leader.journal.durable_end)
    assert votes == [PrepareVote.OK]
    answers: list[Any] = []
    transactions.commit(X1, False, "A", answers.append)
    await until_true(lambda: leader.journal.durable_end == leader.journal.end)
    assert (
        leader.streams.get("t-0") is None or leader.bodies() == []
    )  # the commit is not confirmed: nothing refers to it
    leader.journal.confirm(leader.journal.durable_end)
    await until_true(lambda: leader.stream("t-0").durable_end > 0)
    assert (answers, leader.bodies()) == ([], [])
    end = leader.journal.end
    leader.stream("t-0").confirm(leader.stream("t-0").durable_end)
    assert (answers, leader.bodies()) == ([None], [b"m"])
    assert leader.journal.end > end  # Applied follows the confirmation of the messages
    leader.alone = True
    await leader.close()


UNKNOWN: dict[str, Callable[[TransactionManager, list[Any]], None]] = {
    "newest decision": lambda tx, heard: tx.last_decided("query", heard.append),
    "prepared branches": lambda tx, heard: tx.when_current(heard.append),
    "commit": lambda tx, heard: tx.commit(X1, False, "A", heard.append),
    "rollback": lambda tx, heard: tx.rollback(X1, "A", heard.append),
    "prepare": lambda tx, heard: tx.prepare(X1, heard.append, "A"),
    "decision": lambda tx, heard: tx.decide("query", 1, [X1], heard.append, own=[0]),
    "end of a query": lambda tx, heard: tx.end_query("query", heard.append),
    "forgotten outcome": lambda tx, heard: tx.when_recorded("FORGET", heard.append),
}


@pytest.mark.parametrize("question", UNKNOWN)
def test_what_is_unknown_is_said_only_by_who_is_still_the_master(tmp_path: Path, question: str) -> None:
    @in_loop
    async def scenario() -> None:
        leader = PairDisk(tmp_path)
        transactions = await elected(leader, 1, alone=False)
        heard: list[Any] = []
        UNKNOWN[question](transactions, heard)
        await until_true(lambda: leader.journal.durable_end == leader.journal.end > leader.journal.confirmed_end)
        assert heard == []
        leader.journal.confirm(leader.journal.durable_end)
        assert len(heard) == 1
        UNKNOWN[question](transactions, heard)
        transactions.fence("b leads in epoch 2")
        leader.streams.fence("b leads in epoch 2")
        assert "b leads in epoch 2" in str(heard[1])
        await leader.close()

    scenario()


@in_loop
async def test_a_fence_refuses_whoever_waits(tmp_path: Path) -> None:
    leader = PairDisk(tmp_path)
    transactions = await elected(leader, 1, alone=False)
    answers: list[Any] = []
    begun(transactions, X1, [b"m"])
    transactions.prepare(X1, answers.append)
    begun(transactions, local(1), [b"n"])
    transactions.commit(local(1), True, "A", answers.append)
    transactions.decide("query", 1, [X3], answers.append)
    await until_true(lambda: leader.journal.durable_end > leader.journal.confirmed_end)
    transactions.fence("b leads in epoch 2")
    leader.streams.fence("b leads in epoch 2")
    assert len(answers) == 3
    assert all(isinstance(answer, Refusal) and "b leads" in str(answer) for answer in answers)
    with pytest.raises(TransactionRefused):
        transactions.begin("A", X2)
    leader.journal.confirm(1 << 40)
    assert len(answers) == 3
    await leader.close()
    again = PairDisk(tmp_path)  # what it wrote is there, and is decided by the comparison with the leader
    assert again.journal.origin is not None
    await again.close()


async def commit_waiting_for_its_partition(leader: PairDisk) -> tuple[TransactionManager, list[Any]]:
    """Commit a transaction whose journal is confirmed, and its message not; return the list for its answer, too."""
    transactions = await elected(leader, 1, alone=False)
    answers: list[Any] = []
    begun(transactions, local(1), [b"n"])
    transactions.commit(local(1), True, "A", answers.append)
    await until_true(lambda: leader.journal.durable_end == leader.journal.end)
    leader.journal.confirm(leader.journal.durable_end)
    await until_true(lambda: leader.streams.get("t-0") is not None and leader.stream("t-0").durable_end > 0)
    return transactions, answers


@in_loop
async def test_a_commit_that_waits_for_its_partition_is_refused_by_a_fence(tmp_path: Path) -> None:
    leader = PairDisk(tmp_path)
    transactions, answers = await commit_waiting_for_its_partition(leader)
    transactions.fence("b leads")
    leader.streams.fence("b leads")
    assert [type(answer) for answer in answers] == [OutcomeUnknown]
    await leader.close()


@in_loop
async def test_a_stop_writes_an_unconfirmed_commit_only_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the set did not confirm is not readable: a later attempt would not find it, and append it again."""
    monkeypatch.setattr(stalled, "RETRY_S", 0.0)
    leader = PairDisk(tmp_path)
    _, answers = await commit_waiting_for_its_partition(leader)
    end = leader.stream("t-0").end
    leader.streams.end("the broker is stopping")
    await asyncio.sleep(0.05)  # other parts of the broker stop; many attempts would fit
    assert leader.stream("t-0").end == end
    assert [type(answer) for answer in answers] == [OutcomeUnknown]
    await leader.close()
    again = PairDisk(tmp_path)
    await elected(again, 2)
    assert again.bodies() == [b"n"]
    await again.close()


@in_loop
async def test_a_stop_ends_the_wait_for_the_journal(tmp_path: Path) -> None:
    """Retention waits for the journal, and a broker that stops waits for retention."""
    leader = PairDisk(tmp_path)
    transactions = await elected(leader, 1, alone=False)
    begun(transactions, X1, [b"m"])
    transactions.prepare(X1, lambda vote: None)
    answers: list[Any] = []
    transactions.when_on_disk(answers.append)
    await until_true(lambda: leader.journal.durable_end > leader.journal.confirmed_end)
    assert answers == []
    leader.streams.end("the broker is stopping")
    assert [str(answer) for answer in answers] == ["the broker is stopping"]
    await leader.close()


@in_loop
async def test_an_interrupted_commit_is_finished_by_the_next_leader_once(tmp_path: Path) -> None:
    one, other = PairDisk(tmp_path / "a"), PairDisk(tmp_path / "b")
    await elected(one, 1)
    await follow(one, other)
    transactions = one.transactions
    assert transactions is not None
    one.alone = False
    answers: list[Any] = []
    begun(transactions, local(1), [b"one", b"two", b"three"])
    transactions.commit(local(1), True, "A", answers.append)
    await until_true(lambda: one.journal.durable_end == one.journal.end)
    await copied(one, other)
    one.journal.confirm(one.journal.durable_end)
    await until_true(lambda: one.streams.get("t-0") is not None and one.stream("t-0").durable_end > 0)
    origin = one.stream("t-0").origin
    assert origin is not None
    await other.streams.adopt({"t-0": (origin, ())})
    part = one.stream("t-0").read(0, one.stream("t-0").end, 24)  # the first message only
    other.stream("t-0").append_copy(part)
    await durable(other.stream("t-0"))
    await elected(other, 2)
    assert other.bodies() == [b"one", b"two", b"three"]
    transactions.fence("b leads")
    one.streams.fence("b leads")
    await one.close()
    again = PairDisk(tmp_path / "a")
    await follow(other, again, epoch=2)
    assert again.bodies() == [b"one", b"two", b"three"]
    await again.close()
    await other.close()


@in_loop
async def test_old_files_go_at_the_follower_too_and_a_late_one_begins_again(tmp_path: Path) -> None:
    leader, follower = PairDisk(tmp_path / "a", journal_bytes=2000), PairDisk(tmp_path / "b")
    transactions = await elected(leader, 1)
    await follow(leader, follower)
    answers: list[Any] = []
    for number in range(30):
        begun(transactions, local(number), [b"x" * 500])
        transactions.commit(local(number), True, "A", answers.append)
        await done(answers, number + 1)
        if number < 20:
            await copied(leader, follower)
            origin = leader.journal.origin
            assert origin is not None
            await follower.journal.drop_before(origin.start)
    names = sorted(path.name for path in (follower.data / "transactions").glob("*.journal"))
    assert 0 < len(names) < 8
    assert follower.journal.end < origin.start + 20_000
    mine = follower.journal.origin
    assert mine is not None
    assert mine.start > 0
    transactions.close()
    await follower.close()
    again = PairDisk(tmp_path / "b")
    assert again.journal.loss is None
    await again.close()
    leader.transactions = None
    await leader.close()


@in_loop
async def test_a_returning_leader_keeps_its_tail_and_follows(tmp_path: Path) -> None:
    one, other = PairDisk(tmp_path / "a"), PairDisk(tmp_path / "b")
    first = await elected(one, 1)
    await prepared(first, X1, [b"known to both"])
    await follow(one, other)
    one.alone = False
    votes: list[Any] = []
    begun(first, X2, [b"known to one"])
    first.prepare(X2, votes.append)
    await until_true(lambda: one.journal.durable_end == one.journal.end)
    first.fence("b leads")
    one.streams.fence("b leads")
    await one.close()
    second = await elected(other, 2)
    await prepared(second, X3, [b"of epoch 2"])
    again = PairDisk(tmp_path / "a")
    await follow(other, again, epoch=2)
    [kept] = lost_found.kept(again.files, again.data)
    assert (kept.stream, b"known to one" in kept.path.read_bytes()) == (JOURNAL, True)
    assert again.journal.end == other.journal.end
    third = await elected(again, 3)
    assert third.recover(None) == [X1, X3]
    await again.close()
    await other.close()


@in_loop
async def test_a_foreign_journal_is_put_aside(tmp_path: Path) -> None:
    one, other = PairDisk(tmp_path / "a"), PairDisk(tmp_path / "b")
    await prepared(await elected(one, 1), X1, [b"one"])
    foreign = await elected(other, 1)
    await prepared(foreign, X2, [b"other"])
    await other.close()
    again = PairDisk(tmp_path / "b")
    await follow(one, again)
    [kept] = lost_found.kept(again.files, again.data)
    assert sorted(path.name for path in kept.path.iterdir()) == [f"{0:020d}.journal", "extent", "incarnation"]
    assert (await elected(again, 2)).recover(None) == [X1]
    await again.close()
    await one.close()


@in_loop
async def test_a_journal_whose_incarnation_cannot_be_read_is_put_aside(tmp_path: Path) -> None:
    one, other = PairDisk(tmp_path / "a"), PairDisk(tmp_path / "b")
    await prepared(await elected(one, 1), X1, [b"one"])
    await follow(one, other)
    await other.close()
    old = journal_file(other).read_bytes()
    (other.data / "transactions" / "incarnation").write_bytes(b"damaged")
    again = PairDisk(tmp_path / "b")
    assert "cannot be read" in str(again.journal.loss)
    await follow(one, again)
    [kept] = lost_found.kept(again.files, again.data)
    assert (kept.path / journal_file(again).name).read_bytes() == old
    assert journal_file(again).read_bytes() == journal_file(one).read_bytes()
    assert again.journal.loss is None
    await again.close()
    await one.close()


def journal_file(disk: PairDisk) -> Path:
    return disk.data / "transactions" / f"{0:020d}.journal"


@in_loop
async def test_a_shortened_journal_is_a_loss_and_healed_by_a_copy(tmp_path: Path) -> None:
    one, other = PairDisk(tmp_path / "a"), PairDisk(tmp_path / "b")
    first = await elected(one, 1)
    await prepared(first, X1, [b"one" * 100])
    await follow(one, other)
    whole = other.journal.end
    await other.close()
    path = journal_file(other)
    path.write_bytes(path.read_bytes()[:-50])
    again = PairDisk(tmp_path / "b")
    assert "the transaction journal ends at LSN" in str(again.journal.loss)
    assert f"was durable up to {whole}" in str(again.journal.loss)
    await follow(one, again)
    assert (again.journal.loss, again.journal.end) == (None, whole)
    assert journal_file(again).read_bytes() == journal_file(one).read_bytes()
    await again.close()
    await one.close()


@in_loop
async def test_a_flipped_bit_is_a_loss_and_never_sent(tmp_path: Path) -> None:
    one, other = PairDisk(tmp_path / "a"), PairDisk(tmp_path / "b")
    first = await elected(one, 1)
    await prepared(first, X1, [b"one" * 100])
    await prepared(first, X2, [b"two" * 100])
    await follow(one, other)
    await other.close()
    data = bytearray(journal_file(other).read_bytes())
    data[200] ^= 1
    journal_file(other).write_bytes(data)
    again = PairDisk(tmp_path / "b")
    assert again.journal.loss is not None
    await follow(one, again)
    assert again.journal.loss is None
    assert journal_file(again).read_bytes() == journal_file(one).read_bytes()
    data = bytearray(journal_file(one).read_bytes())
    data[200] ^= 1
    journal_file(one).write_bytes(data)
    with pytest.raises(StreamDamaged):
        one.journal.read(20, one.journal.end, 1 << 20)
    await again.close()
    await one.close()


@in_loop
async def test_wrong_runs_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    one, other = PairDisk(tmp_path / "a"), PairDisk(tmp_path / "b")
    await prepared(await elected(one, 1), X1, [b"one"])
    await follow(one, other)
    end, good = other.journal.end, one.journal.read(20, one.journal.end, 1 << 20)
    for wrong, reason in (
        (good, "the run begins at 20"),
        (StreamBytes(end, 0, good.data), "damaged, or cut"),
        (StreamBytes(end, 7, b""), "is in the file that begins at 7"),
    ):
        with pytest.raises(StreamRefused, match=reason):
            other.journal.append_copy(wrong)
    assert other.journal.end == end
    await one.close()
    await other.close()
