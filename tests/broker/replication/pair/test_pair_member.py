"""The core of a pair, step by step. Numbers (``# I3``) are those of the invariants in docs/replication.md's table."""

from __future__ import annotations

from dataclasses import replace

import pytest
from metaq_broker.log.streams.facts import EpochStart, StreamOrigin
from metaq_broker.replication.pair import actions, events
from metaq_broker.replication.pair.actions import PairRole
from metaq_broker.replication.pair.events import ChangeOutcome
from metaq_broker.replication.pair.leading import JOIN_BYTES
from metaq_broker.replication.pair.member import HAND_OVER_AGAIN_TICKS, PairSettings
from metaq_broker.replication.pair.messages import (
    BeginStreams,
    ElectYourself,
    EndsMoved,
    PairHello,
    PairRefused,
    PairWelcome,
    RunStored,
    StreamEnds,
    StreamRun,
    StreamsBegun,
    StreamStart,
)
from pair_steps import LINK, Steps, T, entry, facts, master, record, slave

UNKNOWN, CONFLICT = ChangeOutcome.UNKNOWN, ChangeOutcome.CONFLICT


class TestTheFirstRecord:
    def test_a_member_with_data_begins_the_pair(self) -> None:
        steps = Steps().reads(None)
        assert steps.one(actions.StorePromise).promised == 1
        change = steps.finishes().one(actions.ChangeRecord)
        assert (change.version, change.record.master, change.record.in_sync) == (None, "a", {"a"})

    def test_a_blank_member_waits_for_another_blank_one(self) -> None:
        """Otherwise an empty member could replace the data of the other one."""
        steps = Steps(blank=True).reads(None)
        assert steps.done == []
        assert "waiting for the other member" in (steps.member.trouble or "")
        assert steps.feed(events.MemberSeen("b", False)).reads(None).done == []
        steps.feed(events.MemberSeen("b", True)).reads(None)
        assert steps.kinds == ["RoleChanged", "StorePromise"]

    def test_a_member_of_a_pair_does_not_begin_it_again(self) -> None:
        """I8: ZooKeeper was emptied; nobody knows who has everything."""
        steps = Steps(promised=4, seen=3).reads(None)
        assert steps.done == []
        assert "knows a master of epoch 3" in (steps.member.trouble or "")


class TestRegistration:
    def test_a_new_member_enters_itself(self) -> None:
        steps = Steps(uuid="b", blank=True).reads(record(1, "a", "a", members="a"), 3)
        change = steps.one(actions.ChangeRecord)
        assert (change.version, change.record.members["b"], change.record.in_sync) == (3, entry("b"), {"a"})

    def test_a_member_with_foreign_data_touches_nothing(self) -> None:
        steps = Steps(uuid="b").reads(record(1, "a", "a", members="a"), 3)
        assert steps.all(actions.ChangeRecord) == []
        assert "never belonged to the pair" in (steps.member.trouble or "")
        steps.hears(PairHello(1, "a", record(1, "a", "a", members="a"), 3)).finishes()
        assert steps.sent() == []

    def test_a_third_member_is_refused(self) -> None:
        steps = Steps(uuid="c", blank=True).reads(record(1, "a", "ab"), 3)
        assert steps.all(actions.ChangeRecord) == []
        assert steps.member.trouble == "the pair has its members already: a:1, b:1"

    def test_an_emptied_disk_replaces_the_member_at_its_address(self) -> None:
        """I8: the old uuid leaves the set with it."""
        old = record(1, "a", "ab").registering("old", entry("c"), instead_of={"b"})
        steps = Steps(uuid="c", blank=True).reads(old, 3)
        change = steps.one(actions.ChangeRecord)
        assert change.record.members.keys() == {"a", "c"}
        assert change.record.in_sync == {"a"}

    def test_the_only_disk_in_sync_is_not_replaced(self) -> None:
        """I8."""
        alone = record(2, "old", ("old",), members=("old",)).registering("old", entry("c"))
        steps = Steps(uuid="c", blank=True).reads(alone, 3)
        assert steps.all(actions.ChangeRecord) == []
        assert "the only member in sync" in (steps.member.trouble or "")

    def test_a_restarted_member_registers_its_boot_and_stays_in_the_set(self) -> None:
        steps = Steps(uuid="b", boots=("1", "2"), promised=1, seen=1).reads(record(1, "a", "ab"), 3)
        change = steps.one(actions.ChangeRecord)
        assert change.record.members["b"].boot == "2"
        assert change.record.in_sync == {"a", "b"}


class TestElection:
    def test_promise_then_record_then_epoch_then_serve(self) -> None:
        """I3: each step begins when the one before is durable."""
        steps = slave().feed(events.MasterLost("a", "connection refused"))
        assert steps.kinds == ["ReadRecord"]
        steps.reads(record(1, "a", "ab"), 5)
        assert steps.kinds == ["RoleChanged", "StorePromise"]
        change = steps.finishes().one(actions.ChangeRecord)
        assert (change.version, change.record.epoch, change.record.in_sync) == (5, 2, {"b"})
        assert steps.changed(6).kinds == ["StorePromise", "BeginEpoch"]
        assert steps.member.role is PairRole.CANDIDATE
        steps.feed(events.EpochBegun(2, {T: 0}))
        assert steps.one(actions.RoleChanged).role is PairRole.MASTER

    def test_a_write_under_way_is_awaited_and_not_acknowledged(self) -> None:
        """I1: the new epoch begins behind everything that the old master may count."""
        steps = slave().hears(StreamRun(1, T, 0, 10, b"x"))
        write = steps.one(actions.WriteRun)
        steps.feed(events.MasterLost("a", "")).reads(record(1, "a", "ab"), 5).finishes()
        assert steps.all(actions.ChangeRecord) == []
        steps.feed(events.DiskDone(write.number))
        assert steps.kinds == ["ChangeRecord"]

    def test_a_candidate_refuses_the_older_master(self) -> None:
        """I3: so the older master cannot acknowledge any more."""
        steps = slave().feed(events.MasterLost("a", "")).reads(record(1, "a", "ab"), 5)
        steps.hears(StreamRun(1, T, 0, 10, b"x"))
        assert steps.sent() == [PairRefused(2)]
        assert steps.hears(PairHello(1, "a", record(1, "a", "ab"), 5), 2).sent(2) == [PairRefused(2)]

    def test_a_hello_of_a_superseded_master_does_not_replace_one_that_waits(self) -> None:
        """I3: a member that is not registered yet answers the current master once it is."""
        steps = Steps(uuid="c", blank=True, settings=PairSettings(members_max=3))
        steps.hears(PairHello(4, "b", record(4, "b", "b"), 9), 1)
        assert steps.hears(PairHello(2, "a", record(2, "a", "ab"), 5), 2).sent(2) == [PairRefused(4)]
        steps.feed(events.LinkDown(2, "reset"))
        steps.reads(record(4, "b", "b", members="abc"), 10).finishes()
        assert [type(message) for message in steps.sent(1)] == [PairWelcome]

    @pytest.mark.parametrize("epoch", [2, 3])
    def test_whoever_loses_the_election_follows_who_won(self, epoch: int) -> None:
        """I3: two elect at once; one compare-and-set wins."""
        steps = slave().feed(events.MasterLost("a", "")).reads(record(1, "a", "ab"), 5).finishes()
        assert steps.answered(CONFLICT).kinds == ["ReadRecord"]
        steps.reads(record(epoch, "a", "a"), 6)
        assert steps.member.role is PairRole.LEARNER
        assert steps.all(actions.ChangeRecord) == []
        steps.finishes().hears(PairHello(epoch, "a", record(epoch, "a", "a"), 6), 2).finishes()
        assert steps.member.role is PairRole.LEARNER
        assert steps.member._following.link == 2

    def test_whoever_loses_the_election_ends_its_connection_to_the_master(self) -> None:
        """I7: the master waits there for an answer that is not given any more; it opens another one."""
        steps = slave().feed(events.MasterLost("a", "")).reads(record(1, "a", "ab"), 5).finishes()
        assert steps.all(actions.CloseLink) == []
        assert steps.answered(CONFLICT).reads(record(1, "a", "a"), 6).one(actions.CloseLink).link == LINK

    def test_so_does_one_that_had_not_welcomed_it(self) -> None:
        """I7."""
        steps = slave().hears(StreamRun(1, T, 0, 10, b"x")).feed(events.LinkDown(LINK, "reset"))
        steps.hears(PairHello(1, "a", record(1, "a", "ab"), 5), 2)
        steps.feed(events.MasterLost("a", "")).reads(record(1, "a", "ab"), 5)
        assert steps.reads(record(1, "a", "a"), 6).one(actions.CloseLink).link == 2

    def test_a_change_that_was_none_of_an_election_does_not_end_it(self) -> None:
        steps = slave().feed(events.MasterLost("a", "")).reads(record(1, "a", "ab"), 5).finishes().answered(CONFLICT)
        change = steps.reads(record(1, "a", "ab", a="2"), 6).one(actions.ChangeRecord)
        assert (change.version, change.record.epoch) == (6, 2)

    def test_a_copy_that_reads_an_old_record_first_does_not_promise_its_epoch(self) -> None:
        """I8: the old record does not have it in its set; the current one does, with data that the copy lacks."""
        steps = Steps(uuid="b", boots=("1", "2"), promised=1, seen=1, streams={T: facts(10, (1, 0))})
        steps.reads(record(2, "a", "a"), 7)
        assert steps.all(actions.StorePromise) == []
        steps.answered(CONFLICT).reads(record(2, "a", "ab"), 9)
        change = steps.one(actions.ChangeRecord)
        assert (change.version, change.record.in_sync) == (9, {"a"})
        assert "is a copy" in (steps.member.trouble or "")

    def test_a_member_out_of_the_set_never_leads(self) -> None:
        """I8."""
        steps = slave().reads(record(1, "a", "a"), 6).feed(events.MasterLost("a", "")).reads(record(1, "a", "a"), 6)
        assert steps.member.role is PairRole.LEARNER
        assert steps.done == []

    def test_a_restarted_master_leads_in_a_later_epoch_only(self) -> None:
        """I2: it may have bytes that the other member lacks."""
        steps = Steps(boots=("1", "2"), promised=3, seen=3, streams={T: facts(10, (3, 0))})
        steps.reads(record(3, "a", "ab"), 7)
        assert steps.one(actions.ChangeRecord).record == record(3, "a", "ab", a="2"), "first it registers its boot"
        assert steps.changed(8).one(actions.StorePromise).promised == 4
        change = steps.finishes().one(actions.ChangeRecord)
        assert (change.record.epoch, change.record.in_sync, change.record.members["a"].boot) == (4, {"a"}, "2")

    def test_a_record_of_its_own_older_boot_is_not_its_victory(self) -> None:
        """I3: the boot before had won with the same epoch, and may have written in it."""
        steps = Steps(boots=("1", "2"), promised=4, seen=3).reads(record(3, "a", "ab", a="2"), 7)
        assert steps.one(actions.ChangeRecord).record.epoch == 4
        steps.answered(CONFLICT).reads(record(4, "a", "a"), 8)
        assert steps.all(actions.BeginEpoch) == []
        assert steps.one(actions.ChangeRecord).record == record(4, "a", "a", a="2")
        assert steps.changed(9).finishes().one(actions.ChangeRecord).record.epoch == 5

    def test_a_master_that_left_the_set_is_replaced_without_a_hint(self) -> None:
        steps = slave().reads(record(1, "a", "b"), 6)
        assert steps.member.role is PairRole.CANDIDATE


class TestLostAnswers:
    def test_an_election_that_was_stored(self) -> None:
        steps = slave().feed(events.MasterLost("a", "")).reads(record(1, "a", "ab"), 5).finishes()
        assert steps.answered(UNKNOWN).kinds == ["ReadRecord"]
        assert "BeginEpoch" in steps.reads(record(2, "b", "b"), 6).kinds

    def test_an_election_that_was_not_stored_yet(self) -> None:
        """The same version says nothing: the change may still arrive. Another change of it ends the doubt."""
        steps = slave().feed(events.MasterLost("a", "")).reads(record(1, "a", "ab"), 5).finishes().answered(UNKNOWN)
        assert steps.reads(record(1, "a", "ab"), 5).done == []
        assert steps.feed(events.Tick()).kinds == ["ReadRecord"]
        assert steps.reads(record(1, "a", "ab"), 5).one(actions.ChangeRecord).version == 5

    def test_a_growth_keeps_both_sets_until_a_later_version_is_read(self) -> None:
        """I1: whichever set is stored, each of its members has what is acknowledged."""
        steps = grown(master())
        steps.answered(UNKNOWN).reads(record(2, "a", "a"), 1)
        assert steps.feed(events.BytesSynced(T, 10)).all(actions.MoveReadableEnd) == []
        steps.feed(events.LinkDown(LINK, "reset"), events.Tick()).reads(record(2, "a", "a"), 1)
        assert steps.all(actions.MoveReadableEnd) == []
        assert steps.one(actions.ChangeRecord).record.in_sync == {"a"}
        assert steps.changed(2).one(actions.MoveReadableEnd).end == 10

    def test_an_older_version_is_ignored(self) -> None:
        steps = master()
        steps.reads(record(1, "a", "ab"), 0)
        assert steps.member.role is PairRole.MASTER
        assert steps.member.in_sync == {"a"}


def grown(steps: Steps) -> Steps:
    """Member ``b`` has everything, and the master has proposed the set with it."""
    steps.welcomed_by("b", 0)
    steps.hears(StreamsBegun(steps.member.epoch, {T: steps.member._logs[T].written}))
    assert steps.one(actions.ChangeRecord).record.in_sync == {"a", "b"}
    return steps


class TestAcknowledging:
    def test_alone_what_is_durable_is_readable(self) -> None:
        steps = master().feed(events.BytesWritten(T, 10))
        assert steps.done == []
        assert steps.feed(events.BytesSynced(T, 10)).one(actions.MoveReadableEnd) == actions.MoveReadableEnd(T, 10)

    def test_a_member_is_waited_for_before_it_is_in_the_set(self) -> None:
        """I1."""
        steps = grown(master()).feed(events.BytesSynced(T, 10))
        assert steps.kinds == ["SendRun"]
        steps.changed(2)
        assert steps.all(actions.MoveReadableEnd) == []
        assert steps.hears(RunStored(2, T, 10)).one(actions.MoveReadableEnd).end == 10

    def test_a_lost_member_is_waited_for_until_the_set_is_smaller(self) -> None:
        """I1: shrink first, acknowledge afterwards."""
        steps = grown(master()).changed(2).feed(events.BytesSynced(T, 10))
        steps.feed(events.LinkDown(LINK, "reset"))
        assert steps.one(actions.ChangeRecord).record.in_sync == {"a"}
        assert steps.all(actions.MoveReadableEnd) == []
        assert steps.changed(3).one(actions.MoveReadableEnd).end == 10

    def test_with_two_required_the_gate_closes_before_the_end_moves(self) -> None:
        """What waits is refused, and acknowledged by nobody."""
        steps = master(min_in_sync=2)
        assert steps.one(actions.GateMoved).open is False
        steps = grown(steps).changed(2)
        assert steps.one(actions.GateMoved).open is True
        steps.feed(events.BytesSynced(T, 10), events.LinkDown(LINK, "reset")).changed(3)
        assert steps.kinds[:2] == ["GateMoved", "MoveReadableEnd"]
        assert steps.one(actions.GateMoved) == actions.GateMoved(False, "1 of 2 required members are in sync")

    def test_acknowledgements_of_another_epoch_or_link_count_for_nothing(self) -> None:
        steps = grown(master()).changed(2).feed(events.BytesSynced(T, 10))
        assert steps.hears(RunStored(1, T, 10)).done == []
        assert steps.hears(RunStored(2, T, 10), link=9).done == []

    def test_a_new_stream_is_waited_for_too(self) -> None:
        steps = grown(master()).changed(2).feed(events.StreamAdded(facts(0, name="u-0")))
        (begin,) = steps.sent()
        assert isinstance(begin, BeginStreams)
        assert not begin.complete
        assert steps.feed(events.BytesSynced("u-0", 7), events.Tick()).all(actions.ChangeRecord) == []
        assert steps.hears(StreamsBegun(2, {"u-0": 0})).one(actions.SendRun).end == 7
        assert steps.hears(RunStored(2, "u-0", 7)).one(actions.MoveReadableEnd).end == 7

    def test_an_answer_about_a_stream_of_the_same_name_before_counts_for_nothing(self) -> None:
        """I1: the topic was deleted and created anew while the member prepared its copy."""
        steps = master(end=40).welcomed_by("b", 40)
        steps.feed(events.StreamRemoved(T), events.StreamAdded(facts(0, incarnation="j")))
        steps.hears(StreamsBegun(2, {T: 40})).feed(events.BytesSynced(T, 10))
        assert steps.all(actions.SendRun) == []
        assert steps.hears(StreamsBegun(2, {T: 0})).one(actions.SendRun).offset == 0

    def test_a_member_that_comes_back_with_less_leaves_the_set(self) -> None:
        """I8: its disk is another one, whatever it says."""
        steps = grown(master()).changed(2).feed(events.BytesSynced(T, 10)).hears(RunStored(2, T, 10))
        steps.welcomed_by("b", 0, link=2)
        assert steps.one(actions.ChangeRecord).record.in_sync == {"a"}

    def test_a_member_joins_only_with_the_boot_that_it_has_registered(self) -> None:
        """I8: its next start finds out that the record means this disk."""
        steps = master().welcomed_by("b", 0, boot="2").hears(StreamsBegun(2, {T: 0}))
        assert steps.all(actions.ChangeRecord) == []
        steps.reads(record(2, "a", "a", b="2"), 2)
        assert steps.one(actions.ChangeRecord).record.in_sync == {"a", "b"}


def lagging(steps: Steps, behind: int = 10, boot: str = "1") -> Steps:
    """Member ``b`` follows, and has stored something; clients have put so many bytes more."""
    steps.feed(events.BytesSynced(T, 5)).welcomed_by("b", 0, boot=boot)
    steps.hears(StreamsBegun(2, {T: 0})).hears(RunStored(2, T, 4))
    assert steps.all(actions.ChangeRecord) == []
    return steps.feed(events.BytesSynced(T, 4 + behind))


class TestJoiningUnderLoad:
    """Clients put all the time, and a run takes a while to the other member and back: it never has the last one."""

    def test_a_member_that_lacks_little_is_waited_for_until_it_is_in_the_set(self) -> None:
        steps = lagging(master())
        assert steps.one(actions.MoveReadableEnd).end == 14, "the others need not wait for it yet"
        steps.feed(events.Tick(), events.RecordRead(record(2, "a", "a"), 1), events.BytesSynced(T, 24))
        assert steps.all(actions.MoveReadableEnd) == []
        steps.hears(RunStored(2, T, 14))
        assert steps.one(actions.ChangeRecord).record.in_sync == {"a", "b"}
        steps.changed(2).feed(events.BytesSynced(T, 34))
        assert steps.hears(RunStored(2, T, 24)).one(actions.MoveReadableEnd).end == 24

    def test_one_of_several_streams_is_always_behind(self) -> None:
        steps = master().feed(events.StreamAdded(facts(0, name="u-0")))
        steps.feed(events.BytesSynced(T, 1), events.BytesSynced("u-0", 1)).welcomed_by("b", 0)
        changes = steps.hears(StreamsBegun(2, {T: 0, "u-0": 0})).all(actions.ChangeRecord)
        for end in range(2, 20):
            steps.feed(events.Tick(), events.RecordRead(record(2, "a", "a"), 1), events.BytesSynced(T, end))
            changes += steps.hears(RunStored(2, "u-0", end - 1)).all(actions.ChangeRecord)
            steps.feed(events.BytesSynced("u-0", end))
            changes += steps.hears(RunStored(2, T, end)).all(actions.ChangeRecord)
        assert [change.record.in_sync for change in changes] == [{"a", "b"}]

    def test_who_is_waited_for_joins_when_it_says_that_it_has_everything(self) -> None:
        """I8: before that, it may be dead, and its disk put back."""
        steps = lagging(master(), boot="2").feed(events.Tick(), events.BytesSynced(T, 24))
        assert steps.hears(RunStored(2, T, 14)).all(actions.ChangeRecord) == [], "it is not registered yet"
        assert steps.reads(record(2, "a", "a", b="2"), 2).all(actions.ChangeRecord) == []
        assert steps.hears(RunStored(2, T, 24)).one(actions.ChangeRecord).record.in_sync == {"a", "b"}

    def test_its_lost_connection_ends_the_wait_at_once(self) -> None:
        """It was not proposed, so no record can have it."""
        steps = lagging(master()).feed(events.Tick(), events.BytesSynced(T, 24))
        assert steps.all(actions.MoveReadableEnd) == []
        assert steps.feed(events.LinkDown(LINK, "reset")).one(actions.MoveReadableEnd).end == 24

    def test_who_lacks_much_is_not_waited_for(self) -> None:
        steps = lagging(master(), JOIN_BYTES + 1).feed(events.Tick(), events.BytesSynced(T, JOIN_BYTES + 10))
        assert steps.one(actions.MoveReadableEnd).end == JOIN_BYTES + 10

    def test_who_has_stored_nothing_yet_is_not_waited_for(self) -> None:
        """Its disk may hang: it would be waited for anew with each of its connections."""
        steps = master().feed(events.BytesSynced(T, 5)).welcomed_by("b", 0).hears(StreamsBegun(2, {T: 0}))
        assert steps.feed(events.Tick(), events.BytesSynced(T, 9)).one(actions.MoveReadableEnd).end == 9

    def test_who_has_left_is_not_waited_for(self) -> None:
        steps = master().feed(events.BytesSynced(T, 5), events.LinkUp(LINK))
        steps.hears(PairWelcome(2, "b", "1", {T: facts(0, (2, 0))}, joins=False)).hears(StreamsBegun(2, {T: 0}))
        steps.hears(RunStored(2, T, 5)).feed(events.Tick(), events.BytesSynced(T, 9))
        assert steps.one(actions.MoveReadableEnd).end == 9


class TestEnds:
    def test_who_was_away_is_told_where_streams_begin(self) -> None:
        """Nothing has moved since it is there: it removes what retention has removed meanwhile."""
        steps = master(end=40).feed(events.StreamTrimmed(T, 20, 2), events.Tick())
        assert steps.welcomed_by("b", 40).hears(StreamsBegun(2, {T: 40})).changed(2).sent() == []
        assert steps.feed(events.Tick()).sent() == [EndsMoved(2, {T: StreamEnds(20, 40)})]
        assert steps.feed(events.Tick()).sent() == []


class TestFollowing:
    def test_a_welcome_waits_for_the_promise(self) -> None:
        steps = Steps(uuid="b", promised=1, seen=1).reads(record(1, "a", "ab"), 5)
        steps.hears(PairHello(3, "a", record(3, "a", "a"), 8))
        assert steps.sent() == []
        (welcome,) = steps.finishes().sent()
        assert isinstance(welcome, PairWelcome)
        assert (welcome.epoch, welcome.uuid, welcome.boot) == (3, "b", "1")

    def test_a_welcome_waits_for_what_is_being_written(self) -> None:
        """Its ends are those that the next master compares."""
        steps = slave().hears(StreamRun(1, T, 0, 10, b"x"))
        write = steps.one(actions.WriteRun)
        steps.feed(events.LinkDown(LINK, "reset")).hears(PairHello(1, "a", record(1, "a", "ab"), 5), 2)
        assert steps.sent(2) == []
        (welcome,) = steps.feed(events.DiskDone(write.number)).sent(2)
        assert isinstance(welcome, PairWelcome)
        assert welcome.streams[T].end == 10

    def test_what_is_durable_is_acknowledged(self) -> None:
        steps = slave().hears(StreamRun(1, T, 0, 10, b"x"))
        assert steps.sent() == []
        assert steps.finishes().sent() == [RunStored(1, T, 10)]

    def test_a_gap_ends_the_connection(self) -> None:
        """I2."""
        steps = slave().hears(StreamRun(1, T, 5, 10, b"x"))
        assert steps.kinds == ["CloseLink"]
        assert steps.hears(StreamRun(1, T, 0, 5, b"x")).done == []

    def test_an_older_connection_is_not_heard_any_more(self) -> None:
        steps = slave().hears(PairHello(1, "a", record(1, "a", "ab"), 5), 2)
        assert steps.hears(StreamRun(1, T, 0, 10, b"x")).done == []

    def test_a_tail_is_cut_before_the_epochs_are_adopted(self) -> None:
        """I6."""
        steps = Steps(uuid="b", promised=1, seen=1, streams={T: facts(30, (1, 0)), "u-0": facts(5, name="u-0")})
        steps.reads(record(2, "a", "a"), 5).finishes().hears(PairHello(2, "a", record(2, "a", "a"), 5))
        start = StreamStart(StreamOrigin(T, "i", 0), (EpochStart(1, 0), EpochStart(2, 20)), 20)
        steps.hears(BeginStreams(2, {T: start}, complete=True))
        assert steps.kinds == ["CutStreams", "AdoptStreams"]
        assert steps.one(actions.CutStreams).cuts == {T: 20, "u-0": None}
        assert steps.finishes().sent() == [StreamsBegun(2, {T: 20})]

    def test_what_was_confirmed_is_never_cut(self) -> None:
        """I6: such a master must have lost data."""
        steps = slave().hears(StreamRun(1, T, 0, 30, b"x")).finishes().hears(EndsMoved(1, {T: StreamEnds(0, 30)}))
        steps.hears(PairHello(2, "a", record(2, "a", "a"), 6), 2).finishes()
        start = StreamStart(StreamOrigin(T, "i", 0), (EpochStart(1, 0), EpochStart(2, 20)), 20)
        steps.hears(BeginStreams(2, {T: start}, complete=True), 2)
        assert steps.kinds == ["CloseLink"]
        assert steps.member._following.trouble == "t-0 is confirmed up to 30, and its master has it up to 20 only"


class TestLostData:
    def test_a_copy_of_an_older_boot_leaves_the_set(self) -> None:
        """I8: the record has a boot that this disk does not know, however often it was started since."""
        steps = Steps(uuid="b", boots=("1", "2x", "3x"), promised=1, seen=1).reads(record(1, "a", "ab", b="2"), 5)
        change = steps.one(actions.ChangeRecord)
        assert change.record.in_sync == {"a"}
        assert change.record.members["b"].boot == "3x"

    def test_a_copy_from_before_the_epoch_leaves_the_set(self) -> None:
        """I8: who was in the set of epoch 4 has promised it."""
        steps = Steps(uuid="b", promised=3, seen=3).reads(record(4, "a", "ab"), 5)
        assert steps.one(actions.ChangeRecord).record.in_sync == {"a"}
        assert steps.all(actions.StorePromise) == [], "the next start could not tell any more"

    def test_a_copy_does_not_stand_for_election_on_an_old_record(self) -> None:
        """I8: its own candidacy would raise its promise to the epoch that it does not know."""
        steps = Steps(uuid="b", boots=("1", "2"), promised=2, seen=2).reads(record(2, "a", "b"), 5)
        assert steps.all(actions.StorePromise) == []
        assert steps.answered(CONFLICT).reads(record(3, "b", "ab"), 7).one(actions.ChangeRecord).record.in_sync == {"a"}

    def test_it_follows_nobody_before_it_has_left(self) -> None:
        steps = Steps(uuid="b", promised=3, seen=3).reads(record(4, "a", "ab"), 5)
        assert steps.hears(PairHello(4, "a", record(4, "a", "ab"), 5)).done == []
        steps.changed(6)
        (welcome,) = steps.finishes().sent()
        assert isinstance(welcome, PairWelcome)

    def test_the_only_one_in_the_set_does_nothing(self) -> None:
        steps = Steps(uuid="b", promised=3, seen=3).reads(record(4, "b", "b"), 5)
        assert steps.done == [] or steps.kinds == ["RoleChanged"]
        assert "this data folder is a copy" in (steps.member.trouble or "")

    def test_damaged_data_lead_only_if_there_are_no_others(self) -> None:
        steps = Steps(uuid="b", boots=("1", "2"), promised=4, seen=4, unfit="t-0 is damaged")
        assert steps.reads(record(4, "b", "ab"), 5).member.role is PairRole.LEARNER
        steps = Steps(uuid="b", boots=("1", "2"), promised=4, seen=4, unfit="t-0 is damaged")
        assert steps.reads(record(4, "b", "b", b="2"), 5).member.role is PairRole.CANDIDATE

    def test_damaged_data_that_a_master_has_healed_are_fit_again(self) -> None:
        steps = Steps(uuid="b", boots=("1", "2"), promised=4, seen=4, unfit="t-0 is damaged")
        change = steps.reads(record(4, "a", "ab"), 5).one(actions.ChangeRecord)
        assert change.record.in_sync == {"a"}
        steps.changed(6)
        healed = replace(change.record, in_sync=frozenset("ab"))
        assert steps.feed(events.RecordChanged()).reads(healed, 7).member.role is PairRole.IN_SYNC
        assert steps.member.trouble is None

    @pytest.mark.parametrize("found", [record(2, "a", "a"), None])
    def test_a_zookeeper_that_was_put_back_changes_nothing(self, found: object) -> None:
        """I3, I8."""
        steps = master(in_sync="a")
        steps.feed(events.RecordChanged()).reads(record(1, "a", "ab") if found else None, 0)
        assert steps.member.role is PairRole.MASTER
        assert steps.member.trouble is not None
        assert steps.feed(events.BytesSynced(T, 10)).one(actions.MoveReadableEnd).end == 10


    @pytest.mark.parametrize("found", [record(0, "a", "a"), None])
    def test_a_slave_does_not_stand_for_election_when_the_record_was_put_back(self, found: object) -> None:
        """Its promise would stop a master that goes on; whose nodes in ZooKeeper are gone, too."""
        steps = slave().feed(events.MasterLost("a", "its session in ZooKeeper has ended"))
        steps.reads(found and record(0, "a", "a"), 0)
        assert steps.member.role is PairRole.IN_SYNC
        assert steps.all(actions.StorePromise) == []
        steps.feed(events.RecordChanged()).reads(record(1, "a", "ab"), 6)
        assert (steps.member.role, steps.member.trouble) == (PairRole.IN_SYNC, None)
        steps.feed(events.MasterLost("a", "it refuses connections")).reads(record(1, "a", "ab"), 6)
        assert steps.member.role is PairRole.CANDIDATE


def damaged_master() -> Steps:
    """Member ``a``, alone in the set, with damage at byte 30 of 100; it was elected again, and ``b`` is in sync."""
    damaged = {T: facts(30, (1, 0))}
    steps = Steps(boots=("1", "2"), promised=1, seen=1, unfit="t-0 is damaged", streams=damaged)
    steps.reads(record(1, "a", "a"), 0).changed(1).finishes().changed(2)
    steps.feed(events.BytesWritten(T, 100), events.BytesSynced(T, 100))  # streams report when they begin to lead
    steps.feed(events.EpochBegun(2, {T: 100}), events.LinkUp(LINK))
    return steps.hears(PairWelcome(2, "b", "1", {T: facts(80, (1, 0))}))


class TestADamagedMaster:
    """It was alone in the set; the other member may have what is damaged."""

    def test_the_other_member_keeps_what_is_damaged_here(self) -> None:
        """I6: the ends at the beginning of the epoch count, not those before the damage."""
        steps = damaged_master()
        (begin,) = steps.sent()
        assert isinstance(begin, BeginStreams)
        assert begin.streams[T].keep_to == 80

    def test_it_hands_over_once_the_other_member_is_in_sync(self) -> None:
        steps = damaged_master()
        assert "the other member takes over" in (steps.member.trouble or "")
        steps.hears(StreamsBegun(2, {T: 80})).hears(RunStored(2, T, 100))
        assert steps.one(actions.ChangeRecord).record.in_sync == {"a", "b"}
        steps.changed(3)
        assert steps.sent() == [ElectYourself(2)]
        assert [each.open for each in steps.all(actions.GateMoved)] == [False]

    def test_it_goes_on_if_the_other_member_is_not_elected_and_tries_again(self) -> None:
        steps = damaged_master().hears(StreamsBegun(2, {T: 80})).hears(RunStored(2, T, 100)).changed(3)
        gates, asked = [], 0
        for _ in range(HAND_OVER_AGAIN_TICKS):
            steps.feed(events.Tick(), events.RecordRead(steps.member.record, 3))
            gates += [each.open for each in steps.all(actions.GateMoved)]
            asked += steps.sent().count(ElectYourself(2))
        assert (gates, asked) == ([True, False], 1)

    def test_it_keeps_the_lead_once_it_was_healed(self) -> None:
        steps = damaged_master().reads(record(3, "b", "b"), 3)  # it is opened again, and copies from b
        steps = Steps(boots=("1", "2", "3"), promised=3, seen=3, unfit="t-0 is damaged", streams={T: facts(30, (1, 0))})
        steps.reads(record(3, "b", "b"), 3).changed(4).follows(record(3, "b", "b", a="3"), 4)
        steps.reads(record(3, "b", "ab", a="3"), 5).feed(events.MasterLost("b", "it refuses connections"))
        steps.reads(record(3, "b", "ab", a="3"), 5).finishes().changed(6).feed(events.EpochBegun(4, {T: 100}))
        steps.welcomed_by("b", 100).hears(StreamsBegun(4, {T: 100})).changed(7)
        assert (steps.member.role, steps.member.trouble) == (PairRole.MASTER, None)
        assert ElectYourself(4) not in steps.sent()


class TestFences:
    def test_a_master_ends_when_another_one_was_elected(self) -> None:
        steps = master().reads(record(3, "b", "b"), 2)
        assert steps.one(actions.RoleChanged).role is PairRole.FENCED
        assert steps.feed(events.BytesSynced(T, 10)).done == []

    def test_a_greeting_of_a_later_master_says_it_too(self) -> None:
        steps = master().hears(PairHello(3, "b", record(3, "b", "b"), 2), 4)
        changed = steps.one(actions.RoleChanged)
        assert (changed.role, changed.master) == (PairRole.FENCED, "b"), "though the record it has read names itself"

    def test_a_greeting_of_an_older_master_is_refused(self) -> None:
        steps = master().hears(PairHello(1, "b", record(1, "b", "ab"), 0), 4)
        assert steps.sent(4) == [PairRefused(2)]
        assert steps.member.role is PairRole.MASTER

    def test_another_process_with_this_data_folder_ends_it(self) -> None:
        assert master().reads(record(2, "a", "a", a="9"), 2).one(actions.RoleChanged).role is PairRole.FENCED

    def test_a_failed_disk_ends_it(self) -> None:
        """I2: an offset is written once in an epoch."""
        changed = master().feed(events.DiskFailed("EIO")).one(actions.RoleChanged)
        assert (changed.role, changed.master) == (PairRole.FENCED, None)

    def test_a_member_with_a_later_promise_is_led_in_a_later_epoch(self) -> None:
        """Its election has failed, and its promise stays."""
        steps = master().welcomed_by("b", 0).hears(PairRefused(5))
        steps.reads(record(2, "a", "a"), 1)
        assert steps.one(actions.StorePromise).promised == 6
        steps.finishes()
        assert steps.one(actions.ChangeRecord).record.epoch == 6
        steps.changed(2)
        assert steps.kinds == ["StorePromise", "CloseLink", "BeginEpoch"]
        assert steps.member.role is PairRole.MASTER
        steps.feed(events.LinkUp(7), events.EpochBegun(6, {T: 0}))
        assert steps.one(actions.RoleChanged).epoch == 6
        assert isinstance(steps.sent(7)[0], PairHello), "a link that came up meanwhile"


class TestOperators:
    def test_a_switch_waits_for_the_member_and_takes_no_puts(self) -> None:
        steps = grown(master()).changed(2).feed(events.BytesSynced(T, 10), events.SwitchAsked())
        assert steps.one(actions.GateMoved) == actions.GateMoved(False, "another member takes over", keeps_waiting=True)
        assert steps.hears(RunStored(2, T, 10)).sent() == [ElectYourself(2)]
        assert steps.hears(PairRefused(3)).feed(events.Tick()).all(actions.StorePromise) == [], "it lets the other win"
        assert steps.feed(events.SwitchExpired()).one(actions.GateMoved).open is True

    def test_a_switch_waits_only_for_what_was_written_before(self) -> None:
        """Offsets of groups and the journal are written all the time, and nobody may wait for a sync of the journal."""
        steps = grown(master()).changed(2).feed(events.BytesWritten(T, 10), events.SwitchAsked())
        steps.feed(events.BytesWritten(T, 30))
        assert steps.sent() == []
        assert steps.hears(RunStored(2, T, 10)).sent() == [ElectYourself(2)]

    def test_a_switch_that_is_given_up_is_withdrawn(self) -> None:
        steps = grown(master()).changed(2).feed(events.SwitchAsked())
        assert steps.sent() == [ElectYourself(2)]
        assert steps.feed(events.SwitchExpired()).sent() == [ElectYourself(2, withdrawn=True)]

    def test_who_could_not_read_the_record_in_time_is_not_elected_later(self) -> None:
        steps = slave().hears(ElectYourself(1)).feed(events.RecordUnreadable("away"))
        steps.hears(ElectYourself(1, withdrawn=True)).feed(events.Tick()).reads(record(1, "a", "ab"), 5)
        assert (steps.member.role, steps.all(actions.StorePromise)) == (PairRole.IN_SYNC, [])

    def test_an_election_that_has_begun_goes_on(self) -> None:
        steps = slave().hears(ElectYourself(1)).reads(record(1, "a", "ab"), 5)
        steps.hears(ElectYourself(1, withdrawn=True)).feed(events.Tick())
        assert steps.member.role is PairRole.CANDIDATE

    def test_a_member_that_is_lost_in_a_switch_acknowledges_nothing(self) -> None:
        steps = grown(master(min_in_sync=2)).changed(2).feed(events.BytesSynced(T, 10), events.SwitchAsked())
        steps.feed(events.LinkDown(LINK, "reset")).changed(3)
        assert steps.kinds[:2] == ["GateMoved", "MoveReadableEnd"]
        assert steps.one(actions.GateMoved).keeps_waiting is False

    def test_the_asked_member_elects_itself(self) -> None:
        steps = slave().hears(ElectYourself(1)).reads(record(1, "a", "ab"), 5)
        assert steps.one(actions.StorePromise).promised == 2

    def test_who_leaves_is_not_added_again(self) -> None:
        steps = master().feed(events.LinkUp(LINK))
        steps.hears(PairWelcome(2, "b", "1", {T: facts(0, (1, 0))}, joins=False)).hears(StreamsBegun(2, {T: 0}))
        assert steps.feed(events.Tick()).all(actions.ChangeRecord) == []

    def test_leaving_and_joining(self) -> None:
        """The master takes it out of the set: a member that leaves by itself may be the last one with data."""
        steps = slave().feed(events.LeaveAsked())
        assert steps.kinds == ["CloseLink"]
        steps.hears(PairHello(1, "a", record(1, "a", "a"), 6), 2)
        welcome = steps.sent(2)[0]
        assert isinstance(welcome, PairWelcome)
        assert welcome.joins is False
        assert steps.feed(events.JoinAsked()).kinds == ["CloseLink"]
