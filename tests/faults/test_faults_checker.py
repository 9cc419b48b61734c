"""The history checker against hand-made histories: silent on good ones, and every kind of wrong one is named."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from told_history import BYTES, FAILED, UNKNOWN, A, B, Story

from faults.checker import check, lines_about
from faults.checker.anomaly import Kind
from faults.history import StepKind
from faults.payload import MessageKey
from faults.stored import Place, StoredFrame


@pytest.fixture
def story() -> Story:
    return Story()


# ---- good histories


def good_puts(story: Story) -> None:
    story.put(1)
    story.put(2, 3, 4)
    story.put(5, place=B)
    story.put(6, outcome=FAILED, stored=0)
    story.put(7, outcome=UNKNOWN, stored=0)
    story.put(8, outcome=UNKNOWN, stored=1)


def good_retry(story: Story) -> None:
    story.begin_put(1)
    story.store(1, message_id=1)
    story.put(1, lane="after the reconnect")


def good_batch_torn_by_a_crash(story: Story) -> None:
    story.begin_put(1, 2, 3)
    story.store(1)
    story.store(2)


def good_choice_of_the_broker(story: Story) -> None:
    put = story.begin_put(1, place=Place("orders", -1))
    story.acknowledge(put, story.store(1, B), B)
    story.begin_put(2, place=Place("orders", -1))
    story.store(2, A)


def good_overlap(story: Story) -> None:
    early, late = story.begin_put(1, lane="one"), story.begin_put(2, lane="two")
    story.acknowledge(late, story.store(2))
    story.acknowledge(early, story.store(1))


def good_reads(story: Story) -> None:
    story.put(1)
    story.read(0)
    story.history.end_seen(A, 100, story.history.stamp())
    story.put(2)
    story.read(0, 100)


def good_commit(story: Story) -> None:
    record = story.transaction("x1", 1, 2)
    story.step(record, StepKind.PREPARE)
    story.list_prepared("x1")
    story.put(9)
    story.step(record, StepKind.COMMIT)
    story.store(1)
    story.store(2)
    story.list_prepared()
    story.read(0, 100, 200)


def good_rollbacks(story: Story) -> None:
    story.step(story.transaction("x1", 1), StepKind.ROLLBACK)
    story.transaction("x2", 2)
    prepared = story.transaction("x3", 3)
    story.step(prepared, StepKind.PREPARE)
    story.list_prepared("x3")
    story.step(prepared, StepKind.ROLLBACK)


def good_unanswered_commits(story: Story) -> None:
    story.step(story.transaction("x1", 1, 2), StepKind.COMMIT, UNKNOWN)
    story.step(story.transaction("x2", 3, 4), StepKind.COMMIT, UNKNOWN)
    story.store(3)
    story.store(4)


def good_retention(story: Story) -> None:
    story.retention = True
    story.put(1)
    story.read(0)
    story.put(2)
    story.starts[A] = 100
    del story.frames[A][0]


GOOD = (
    good_puts,
    good_retry,
    good_batch_torn_by_a_crash,
    good_choice_of_the_broker,
    good_overlap,
    good_reads,
    good_commit,
    good_rollbacks,
    good_unanswered_commits,
    good_retention,
)


@pytest.mark.parametrize("tell", GOOD, ids=lambda tell: tell.__name__)
def test_a_good_history_has_no_anomalies(tell: Callable[[Story], None], story: Story) -> None:
    tell(story)
    assert check(story.case()) == []


# ---- bad histories


def missing(story: Story) -> None:
    story.put(1)
    story.put(2, stored=0)


def missing_end_of_a_batch(story: Story) -> None:
    story.put(1, 2, 3)
    story.frames[A].pop()


def missing_partition(story: Story) -> None:
    story.put(1, place=B)
    del story.frames[B]


def moved(story: Story) -> None:
    put = story.begin_put(1)
    story.store(1)
    story.acknowledge(put, 40)


def moved_to_another_partition(story: Story) -> None:
    put = story.begin_put(1, place=B)
    story.acknowledge(put, story.store(1, A))


def altered_payload(story: Story) -> None:
    story.put(1)
    story.frames[A][0] = story.frames[A][0]._replace(key=None, fault="payload of p/1 fails its checksum")


def altered_body(story: Story) -> None:
    story.put(1)
    story.frames[A][0] = story.frames[A][0]._replace(checksum=1)


def altered_flag(story: Story) -> None:
    story.put(1, outcome=UNKNOWN)
    story.frames[A][0] = story.frames[A][0]._replace(flag=1)


def wrong_id(story: Story) -> None:
    story.put(1)
    story.frames[A][0] = story.frames[A][0]._replace(message_id=1)


def twice_after_one_acknowledgement(story: Story) -> None:
    story.put(1, stored=2)


def twice_after_one_attempt(story: Story) -> None:
    story.put(1, outcome=UNKNOWN, stored=2)


def batch_twice(story: Story) -> None:
    story.put(1, 2, stored=2)


def refused_but_stored(story: Story) -> None:
    story.put(1, outcome=FAILED)


def foreign(story: Story) -> None:
    story.store(1)


def one_offset_for_two(story: Story) -> None:
    story.put(1)
    story.acknowledge(story.begin_put(2), 0)


def one_id_for_two(story: Story) -> None:
    story.put(1)
    story.begin_put(2, place=B)
    story.store(2, B, message_id=7001)


def batch_without_its_front(story: Story) -> None:
    story.begin_put(1, 2, 3)
    story.store(2)


def batch_with_a_stranger_inside(story: Story) -> None:
    story.begin_put(1, 2)
    story.store(1)
    story.put(3)
    story.store(2)


def unanswered_put_in_another_partition(story: Story) -> None:
    story.begin_put(1, place=B)
    story.store(1, A)


def stored_before_what_was_acknowledged(story: Story) -> None:
    story.store(2)
    story.acknowledge(story.begin_put(1, lane="one"), story.store(1))
    story.acknowledge(story.begin_put(2, lane="two"), 0)


def late_copy_in_front(story: Story) -> None:
    story.store(2)
    story.acknowledge(story.begin_put(1, lane="one"), story.store(1))
    story.begin_put(2, lane="two")


def pipelined_in_the_wrong_order(story: Story) -> None:
    first, second = story.begin_put(1), story.begin_put(2)
    story.acknowledge(second, story.store(2))
    story.acknowledge(first, story.store(1))


def two_read_at_one_offset(story: Story) -> None:
    story.put(1)
    story.read(0)
    story.history.seen(A, [story.frames[A][0]._replace(message_id=1)])


def read_then_replaced(story: Story) -> None:
    story.begin_put(1)
    story.history.seen(A, [StoredFrame(0, BYTES, 7001, 0, 5001, MessageKey("p", 1))])
    story.put(2)


def read_then_gone(story: Story) -> None:
    story.begin_put(1)
    story.history.seen(A, [StoredFrame(0, BYTES, 7001, 0, 5001, MessageKey("p", 1))])


def end_before_what_was_acknowledged(story: Story) -> None:
    story.put(1)
    story.history.end_seen(A, 0, story.history.stamp())


def never_committed_but_stored(story: Story) -> None:
    story.transaction("x1", 1)
    story.store(1)


def prepared_but_visible(story: Story) -> None:
    story.step(story.transaction("x1", 1), StepKind.PREPARE)
    story.list_prepared("x1")
    story.store(1)


def rolled_back_but_stored(story: Story) -> None:
    record = story.transaction("x1", 1)
    story.step(record, StepKind.COMMIT, UNKNOWN)
    story.step(record, StepKind.ROLLBACK)
    story.store(1)


def refused_commit_but_stored(story: Story) -> None:
    story.step(story.transaction("x1", 1), StepKind.COMMIT, FAILED)
    story.store(1)


def read_before_the_commit(story: Story) -> None:
    record = story.transaction("x1", 1)
    story.store(1)
    story.read(0)
    story.step(record, StepKind.COMMIT)


def committed_but_absent(story: Story) -> None:
    story.step(story.transaction("x1", 1, 2), StepKind.COMMIT)


def committed_but_half(story: Story) -> None:
    story.step(story.transaction("x1", 1, 2), StepKind.COMMIT)
    story.store(1)


def committed_twice(story: Story) -> None:
    story.step(story.transaction("x1", 1), StepKind.COMMIT)
    story.store(1)
    story.store(1)


def committed_to_another_partition(story: Story) -> None:
    story.step(story.transaction("x1", 1), StepKind.COMMIT)
    story.store(1, B)


def half_of_an_unanswered_commit(story: Story) -> None:
    story.step(story.transaction("x1", 1, 2), StepKind.COMMIT, UNKNOWN)
    story.store(2)


def unanswered_commit_of_a_prepared_branch_lost(story: Story) -> None:
    record = story.transaction("x1", 1)
    story.step(record, StepKind.PREPARE)
    story.step(record, StepKind.COMMIT, UNKNOWN)
    story.list_prepared()


def committed_in_two_pieces(story: Story) -> None:
    story.step(story.transaction("x1", 1, 2), StepKind.COMMIT)
    story.store(1)
    story.put(3)
    story.store(2)


def committed_in_another_order(story: Story) -> None:
    story.step(story.transaction("x1", 1, 2), StepKind.COMMIT)
    story.store(2)
    story.store(1)


def committed_and_rolled_back(story: Story) -> None:
    record = story.transaction("x1", 1)
    story.step(record, StepKind.COMMIT)
    story.step(record, StepKind.ROLLBACK)
    story.store(1)


def prepared_and_not_listed(story: Story) -> None:
    story.step(story.transaction("x1", 1), StepKind.PREPARE)
    story.list_prepared()


def prepared_and_unknown_to_the_broker(story: Story) -> None:
    record = story.transaction("x1", 1)
    story.step(record, StepKind.PREPARE)
    story.step(record, StepKind.COMMIT, FAILED, "XA transaction 'x1' has not been started.")


def listed_after_its_end(story: Story) -> None:
    record = story.transaction("x1", 1)
    story.step(record, StepKind.PREPARE)
    story.step(record, StepKind.ROLLBACK)
    story.list_prepared("x1")


def listed_without_prepare(story: Story) -> None:
    story.transaction("x1", 1)
    story.list_prepared("x1")


def listed_but_unknown(story: Story) -> None:
    story.list_prepared("x9")


def start_moved(story: Story) -> None:
    story.starts[A] = 100
    story.store(1)
    story.begin_put(1)


def cut_frame_at_the_end(story: Story) -> None:
    story.put(1)
    story.faults[A] = "the last 3 bytes before 103 are no whole frame"


def corrupt_frame(story: Story) -> None:
    story.put(1)
    story.faults[A] = "corrupt frame in orders-0 at offset 100: checksum 0x1 in the header"


def odd_reply(story: Story) -> None:
    story.history.odd("reply", "a put was answered with a value")


BAD = (
    (missing, Kind.MISSING),
    (missing_end_of_a_batch, Kind.MISSING),
    (missing_partition, Kind.MISSING),
    (moved, Kind.MOVED),
    (moved_to_another_partition, Kind.MOVED),
    (altered_payload, Kind.ALTERED),
    (altered_body, Kind.ALTERED),
    (altered_flag, Kind.ALTERED),
    (wrong_id, Kind.WRONG_ID),
    (twice_after_one_acknowledgement, Kind.TWICE),
    (twice_after_one_attempt, Kind.TWICE),
    (batch_twice, Kind.TWICE),
    (refused_but_stored, Kind.REFUSED_STORED),
    (foreign, Kind.FOREIGN),
    (one_offset_for_two, Kind.SAME_OFFSET),
    (one_id_for_two, Kind.SAME_ID),
    (batch_without_its_front, Kind.TORN_BATCH),
    (batch_with_a_stranger_inside, Kind.TORN_BATCH),
    (unanswered_put_in_another_partition, Kind.TWICE),
    (stored_before_what_was_acknowledged, Kind.ORDER),
    (late_copy_in_front, Kind.ORDER),
    (pipelined_in_the_wrong_order, Kind.LANE_ORDER),
    (two_read_at_one_offset, Kind.TWO_READ),
    (read_then_replaced, Kind.TWO_READ),
    (read_then_gone, Kind.UNREAD),
    (end_before_what_was_acknowledged, Kind.STALE_END),
    (never_committed_but_stored, Kind.UNCOMMITTED),
    (prepared_but_visible, Kind.UNCOMMITTED),
    (rolled_back_but_stored, Kind.UNCOMMITTED),
    (refused_commit_but_stored, Kind.UNCOMMITTED),
    (read_before_the_commit, Kind.UNCOMMITTED),
    (committed_but_absent, Kind.NOT_WHOLE),
    (committed_but_half, Kind.NOT_WHOLE),
    (committed_twice, Kind.NOT_WHOLE),
    (committed_to_another_partition, Kind.NOT_WHOLE),
    (half_of_an_unanswered_commit, Kind.NOT_WHOLE),
    (unanswered_commit_of_a_prepared_branch_lost, Kind.NOT_WHOLE),
    (committed_in_two_pieces, Kind.NOT_CONTIGUOUS),
    (committed_in_another_order, Kind.NOT_CONTIGUOUS),
    (committed_and_rolled_back, Kind.CONTRADICTION),
    (prepared_and_not_listed, Kind.VANISHED),
    (prepared_and_unknown_to_the_broker, Kind.VANISHED),
    (listed_after_its_end, Kind.CAME_BACK),
    (listed_without_prepare, Kind.NEVER_PREPARED),
    (listed_but_unknown, Kind.NEVER_PREPARED),
    (start_moved, Kind.START),
    (cut_frame_at_the_end, Kind.BAD_END),
    (corrupt_frame, Kind.CORRUPT),
    (odd_reply, Kind.ODD),
)


@pytest.mark.parametrize(("tell", "kind"), BAD, ids=[tell.__name__ for tell, _ in BAD])
def test_a_bad_history_is_named(tell: Callable[[Story], None], kind: Kind, story: Story) -> None:
    tell(story)
    assert kind in story.kinds()


def test_every_kind_of_anomaly_has_a_bad_history() -> None:
    assert {kind for _, kind in BAD} == set(Kind)


def test_the_report_shows_the_records_concerned(story: Story) -> None:
    story.put(1)
    story.put(2, stored=0)
    record = story.transaction("x1", 3)
    story.step(record, StepKind.PREPARE)
    story.list_prepared()
    by_kind = {anomaly.kind: lines_about(anomaly, story.case()) for anomaly in check(story.case())}
    assert by_kind[Kind.MISSING] == ["[3-4] put p/2 (100 bytes) to orders-0 by lane: ok at 100 id 7002"]
    assert by_kind[Kind.VANISHED] == [
        "transaction x1",
        "[7-8] prepare: ok",
        "[5-6] put p/3 (100 bytes) to orders-0 by lane in x1: ok at -1 id 7003",
        "[9-10] listed as prepared: False",
    ]


def test_a_message_is_stale_only_where_acknowledged_means_readable(story: Story) -> None:
    end_before_what_was_acknowledged(story)
    assert check(story.case()._replace(readable_at_once=False)) == []
