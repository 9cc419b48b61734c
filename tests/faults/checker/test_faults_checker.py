"""The history checker against hand-made histories: silent on good ones, and every kind of wrong one is named."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from written_history import BYTES, FAILED, UNKNOWN, A, B, Scenario

from faults.checker import check, lines_about
from faults.checker.anomaly import Kind
from faults.history import NOT_REPORTED, Pulled, StepKind
from faults.payload import MessageKey
from faults.stored import PartitionKey, StoredFrame


@pytest.fixture
def scenario() -> Scenario:
    return Scenario()


# ---- good histories


def good_puts(scenario: Scenario) -> None:
    scenario.put(1)
    scenario.put(2, 3, 4)
    scenario.put(5, partition_key=B)
    scenario.put(6, outcome=FAILED, stored=0)
    scenario.put(7, outcome=UNKNOWN, stored=0)
    scenario.put(8, outcome=UNKNOWN, stored=1)


def good_rocketmq(scenario: Scenario) -> None:
    scenario.put(1)
    sent = scenario.put(2)
    sent.messages, sent.message_id = [sent.messages[0]._replace(flag=NOT_REPORTED, checksum=NOT_REPORTED)], NOT_REPORTED
    sent.queue_offset = 1
    scenario.history.pulled |= {Pulled(A, 0, 0, MessageKey("p", 1)), Pulled(A, 1, BYTES, MessageKey("p", 2))}


def good_retry(scenario: Scenario) -> None:
    scenario.begin_put(1)
    scenario.store(1, message_id=1)
    scenario.put(1, lane="after the reconnect")


def good_batch_torn_by_a_crash(scenario: Scenario) -> None:
    scenario.begin_put(1, 2, 3)
    scenario.store(1)
    scenario.store(2)


def good_choice_of_the_broker(scenario: Scenario) -> None:
    put = scenario.begin_put(1, partition_key=PartitionKey("orders", -1))
    scenario.acknowledge(put, scenario.store(1, B), B)
    scenario.begin_put(2, partition_key=PartitionKey("orders", -1))
    scenario.store(2, A)


def good_overlap(scenario: Scenario) -> None:
    early, late = scenario.begin_put(1, lane="one"), scenario.begin_put(2, lane="two")
    scenario.acknowledge(late, scenario.store(2))
    scenario.acknowledge(early, scenario.store(1))


def good_reads(scenario: Scenario) -> None:
    scenario.put(1)
    scenario.read(0)
    scenario.history.end_seen(A, 100, scenario.history.stamp())
    scenario.put(2)
    scenario.read(0, 100)


def good_commit(scenario: Scenario) -> None:
    record = scenario.transaction("x1", 1, 2)
    scenario.step(record, StepKind.PREPARE)
    scenario.list_prepared("x1")
    scenario.put(9)
    scenario.step(record, StepKind.COMMIT)
    scenario.store(1)
    scenario.store(2)
    scenario.list_prepared()
    scenario.read(0, 100, 200)


def good_rollbacks(scenario: Scenario) -> None:
    scenario.step(scenario.transaction("x1", 1), StepKind.ROLLBACK)
    scenario.transaction("x2", 2)
    prepared = scenario.transaction("x3", 3)
    scenario.step(prepared, StepKind.PREPARE)
    scenario.list_prepared("x3")
    scenario.step(prepared, StepKind.ROLLBACK)


def good_unanswered_commits(scenario: Scenario) -> None:
    scenario.step(scenario.transaction("x1", 1, 2), StepKind.COMMIT, UNKNOWN)
    scenario.step(scenario.transaction("x2", 3, 4), StepKind.COMMIT, UNKNOWN)
    scenario.store(3)
    scenario.store(4)


def good_retention(scenario: Scenario) -> None:
    scenario.retention = True
    scenario.put(1)
    scenario.read(0)
    scenario.put(2)
    scenario.starts[A] = 100
    del scenario.frames[A][0]


GOOD = (
    good_puts,
    good_rocketmq,
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


@pytest.mark.parametrize("report", GOOD, ids=lambda report: report.__name__)
def test_a_good_history_has_no_anomalies(report: Callable[[Scenario], None], scenario: Scenario) -> None:
    report(scenario)
    assert check(scenario.case()) == []


# ---- bad histories


def missing(scenario: Scenario) -> None:
    scenario.put(1)
    scenario.put(2, stored=0)


def missing_end_of_a_batch(scenario: Scenario) -> None:
    scenario.put(1, 2, 3)
    scenario.frames[A].pop()


def missing_partition(scenario: Scenario) -> None:
    scenario.put(1, partition_key=B)
    del scenario.frames[B]


def moved(scenario: Scenario) -> None:
    put = scenario.begin_put(1)
    scenario.store(1)
    scenario.acknowledge(put, 40)


def moved_to_another_partition(scenario: Scenario) -> None:
    put = scenario.begin_put(1, partition_key=B)
    scenario.acknowledge(put, scenario.store(1, A))


def altered_payload(scenario: Scenario) -> None:
    scenario.put(1)
    scenario.frames[A][0] = scenario.frames[A][0]._replace(key=None, fault="payload of p/1 fails its checksum")


def altered_body(scenario: Scenario) -> None:
    scenario.put(1)
    scenario.frames[A][0] = scenario.frames[A][0]._replace(checksum=1)


def altered_flag(scenario: Scenario) -> None:
    scenario.put(1, outcome=UNKNOWN)
    scenario.frames[A][0] = scenario.frames[A][0]._replace(flag=1)


def wrong_queue_offset_of_a_send(scenario: Scenario) -> None:
    scenario.put(1)
    scenario.put(2).queue_offset = 2


def wrong_queue_offset_of_a_pull(scenario: Scenario) -> None:
    scenario.put(1, 2)
    scenario.history.pulled.add(Pulled(A, 0, BYTES, MessageKey("p", 2)))


def another_message_pulled(scenario: Scenario) -> None:
    scenario.put(1, 2)
    scenario.history.pulled.add(Pulled(A, 0, 0, MessageKey("p", 2)))


def wrong_id(scenario: Scenario) -> None:
    scenario.put(1)
    scenario.frames[A][0] = scenario.frames[A][0]._replace(message_id=1)


def twice_after_one_acknowledgement(scenario: Scenario) -> None:
    scenario.put(1, stored=2)


def twice_after_one_attempt(scenario: Scenario) -> None:
    scenario.put(1, outcome=UNKNOWN, stored=2)


def batch_twice(scenario: Scenario) -> None:
    scenario.put(1, 2, stored=2)


def refused_but_stored(scenario: Scenario) -> None:
    scenario.put(1, outcome=FAILED)


def foreign(scenario: Scenario) -> None:
    scenario.store(1)


def one_offset_for_two(scenario: Scenario) -> None:
    scenario.put(1)
    scenario.acknowledge(scenario.begin_put(2), 0)


def one_id_for_two(scenario: Scenario) -> None:
    scenario.put(1)
    scenario.begin_put(2, partition_key=B)
    scenario.store(2, B, message_id=7001)


def batch_without_its_front(scenario: Scenario) -> None:
    scenario.begin_put(1, 2, 3)
    scenario.store(2)


def batch_with_a_stranger_inside(scenario: Scenario) -> None:
    scenario.begin_put(1, 2)
    scenario.store(1)
    scenario.put(3)
    scenario.store(2)


def unanswered_put_in_another_partition(scenario: Scenario) -> None:
    scenario.begin_put(1, partition_key=B)
    scenario.store(1, A)


def stored_before_what_was_acknowledged(scenario: Scenario) -> None:
    scenario.store(2)
    scenario.acknowledge(scenario.begin_put(1, lane="one"), scenario.store(1))
    scenario.acknowledge(scenario.begin_put(2, lane="two"), 0)


def late_copy_in_front(scenario: Scenario) -> None:
    scenario.store(2)
    scenario.acknowledge(scenario.begin_put(1, lane="one"), scenario.store(1))
    scenario.begin_put(2, lane="two")


def pipelined_in_the_wrong_order(scenario: Scenario) -> None:
    first, second = scenario.begin_put(1), scenario.begin_put(2)
    scenario.acknowledge(second, scenario.store(2))
    scenario.acknowledge(first, scenario.store(1))


def two_read_at_one_offset(scenario: Scenario) -> None:
    scenario.put(1)
    scenario.read(0)
    scenario.history.seen(A, [scenario.frames[A][0]._replace(message_id=1)])


def read_then_replaced(scenario: Scenario) -> None:
    scenario.begin_put(1)
    scenario.history.seen(A, [StoredFrame(0, BYTES, 7001, 0, 5001, MessageKey("p", 1))])
    scenario.put(2)


def read_then_gone(scenario: Scenario) -> None:
    scenario.begin_put(1)
    scenario.history.seen(A, [StoredFrame(0, BYTES, 7001, 0, 5001, MessageKey("p", 1))])


def end_before_what_was_acknowledged(scenario: Scenario) -> None:
    scenario.put(1)
    scenario.history.end_seen(A, 0, scenario.history.stamp())


def never_committed_but_stored(scenario: Scenario) -> None:
    scenario.transaction("x1", 1)
    scenario.store(1)


def prepared_but_visible(scenario: Scenario) -> None:
    scenario.step(scenario.transaction("x1", 1), StepKind.PREPARE)
    scenario.list_prepared("x1")
    scenario.store(1)


def rolled_back_but_stored(scenario: Scenario) -> None:
    record = scenario.transaction("x1", 1)
    scenario.step(record, StepKind.COMMIT, UNKNOWN)
    scenario.step(record, StepKind.ROLLBACK)
    scenario.store(1)


def refused_commit_but_stored(scenario: Scenario) -> None:
    scenario.step(scenario.transaction("x1", 1), StepKind.COMMIT, FAILED)
    scenario.store(1)


def read_before_the_commit(scenario: Scenario) -> None:
    record = scenario.transaction("x1", 1)
    scenario.store(1)
    scenario.read(0)
    scenario.step(record, StepKind.COMMIT)


def committed_but_absent(scenario: Scenario) -> None:
    scenario.step(scenario.transaction("x1", 1, 2), StepKind.COMMIT)


def committed_but_half(scenario: Scenario) -> None:
    scenario.step(scenario.transaction("x1", 1, 2), StepKind.COMMIT)
    scenario.store(1)


def committed_twice(scenario: Scenario) -> None:
    scenario.step(scenario.transaction("x1", 1), StepKind.COMMIT)
    scenario.store(1)
    scenario.store(1)


def committed_to_another_partition(scenario: Scenario) -> None:
    scenario.step(scenario.transaction("x1", 1), StepKind.COMMIT)
    scenario.store(1, B)


def half_of_an_unanswered_commit(scenario: Scenario) -> None:
    scenario.step(scenario.transaction("x1", 1, 2), StepKind.COMMIT, UNKNOWN)
    scenario.store(2)


def unanswered_commit_of_a_prepared_branch_lost(scenario: Scenario) -> None:
    record = scenario.transaction("x1", 1)
    scenario.step(record, StepKind.PREPARE)
    scenario.step(record, StepKind.COMMIT, UNKNOWN)
    scenario.list_prepared()


def committed_in_two_pieces(scenario: Scenario) -> None:
    scenario.step(scenario.transaction("x1", 1, 2), StepKind.COMMIT)
    scenario.store(1)
    scenario.put(3)
    scenario.store(2)


def committed_in_another_order(scenario: Scenario) -> None:
    scenario.step(scenario.transaction("x1", 1, 2), StepKind.COMMIT)
    scenario.store(2)
    scenario.store(1)


def committed_and_rolled_back(scenario: Scenario) -> None:
    record = scenario.transaction("x1", 1)
    scenario.step(record, StepKind.COMMIT)
    scenario.step(record, StepKind.ROLLBACK)
    scenario.store(1)


def prepared_and_not_listed(scenario: Scenario) -> None:
    scenario.step(scenario.transaction("x1", 1), StepKind.PREPARE)
    scenario.list_prepared()


def prepared_and_unknown_to_the_broker(scenario: Scenario) -> None:
    record = scenario.transaction("x1", 1)
    scenario.step(record, StepKind.PREPARE)
    scenario.step(record, StepKind.COMMIT, FAILED, "XA transaction 'x1' has not been started.")


def listed_after_its_end(scenario: Scenario) -> None:
    record = scenario.transaction("x1", 1)
    scenario.step(record, StepKind.PREPARE)
    scenario.step(record, StepKind.ROLLBACK)
    scenario.list_prepared("x1")


def listed_without_prepare(scenario: Scenario) -> None:
    scenario.transaction("x1", 1)
    scenario.list_prepared("x1")


def listed_but_unknown(scenario: Scenario) -> None:
    scenario.list_prepared("x9")


def start_moved(scenario: Scenario) -> None:
    scenario.starts[A] = 100
    scenario.store(1)
    scenario.begin_put(1)


def cut_frame_at_the_end(scenario: Scenario) -> None:
    scenario.put(1)
    scenario.faults[A] = "the last 3 bytes before 103 are no whole frame"


def corrupt_frame(scenario: Scenario) -> None:
    scenario.put(1)
    scenario.faults[A] = "corrupt frame in orders-0 at offset 100: checksum 0x1 in the header"


def odd_reply(scenario: Scenario) -> None:
    scenario.history.odd("reply", "a put was answered with a value")


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
    (wrong_queue_offset_of_a_send, Kind.WRONG_QUEUE_OFFSET),
    (wrong_queue_offset_of_a_pull, Kind.WRONG_QUEUE_OFFSET),
    (another_message_pulled, Kind.WRONG_QUEUE_OFFSET),
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


@pytest.mark.parametrize(("report", "kind"), BAD, ids=[report.__name__ for report, _ in BAD])
def test_a_bad_history_is_named(report: Callable[[Scenario], None], kind: Kind, scenario: Scenario) -> None:
    report(scenario)
    assert kind in scenario.kinds()


def test_every_kind_of_anomaly_has_a_bad_history() -> None:
    assert {kind for _, kind in BAD} == set(Kind)


def test_the_report_shows_the_records_concerned(scenario: Scenario) -> None:
    scenario.put(1)
    scenario.put(2, stored=0)
    record = scenario.transaction("x1", 3)
    scenario.step(record, StepKind.PREPARE)
    scenario.list_prepared()
    by_kind = {anomaly.kind: lines_about(anomaly, scenario.case()) for anomaly in check(scenario.case())}
    assert by_kind[Kind.MISSING] == ["[3-4] put p/2 (100 bytes) to orders-0 by lane: ok at 100 id 7002"]
    assert by_kind[Kind.VANISHED] == [
        "transaction x1",
        "[7-8] prepare: ok",
        "[5-6] put p/3 (100 bytes) to orders-0 by lane in x1: ok at -1 id 7003",
        "[9-10] listed as prepared: False",
    ]


def test_a_message_is_stale_only_where_acknowledged_means_readable(scenario: Scenario) -> None:
    end_before_what_was_acknowledged(scenario)
    assert check(scenario.case()._replace(readable_at_once=False)) == []
