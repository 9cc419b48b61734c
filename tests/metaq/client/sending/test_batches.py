"""How messages are gathered in batches."""

from __future__ import annotations

import signal
import threading
from typing import Any

from forked import in_child

from metaq.client.sending.batches import MessageBatch, OpenBatches
from metaq.client.sending.futures import future_of


def contents(batches: list[MessageBatch[str, int]]) -> list[tuple[str, Any, list[str]]]:
    return [(batch.topic, batch.queue, batch.messages) for batch in batches]


def test_each_queue_has_batches_of_its_own_in_the_order_of_their_beginning() -> None:
    gathering: OpenBatches[str, int] = OpenBatches(10, 100)
    for topic, queue, text in [("a", 0, "1"), ("a", 1, "2"), ("a", 0, "3"), ("b", 0, "4")]:
        batch, row = gathering.add(topic, queue, text, 1)
        assert batch.messages[row] == text
    assert contents(gathering.take(100)) == [("a", 0, ["1", "3"]), ("a", 1, ["2"]), ("b", 0, ["4"])]
    assert not gathering.waiting


def test_a_batch_ends_at_its_limits_and_a_long_message_has_one_for_itself() -> None:
    gathering: OpenBatches[str, int] = OpenBatches(3, 100)
    sizes = [40, 60, 1, 500, 1, 1, 1, 1]
    for number, size in enumerate(sizes):
        gathering.add("a", 0, str(number), size)
    assert [one.messages for one in gathering.take(10_000)] == [["0", "1"], ["2"], ["3"], ["4", "5", "6"], ["7"]]


def test_what_is_taken_is_not_added_to() -> None:
    gathering: OpenBatches[str, int] = OpenBatches(10, 100)
    for number in range(3):
        gathering.add("a", number, str(number), 30)
    assert [one.messages for one in gathering.take(50)] == [["0"], ["1"]]
    gathering.add("a", 0, "3", 1)
    gathering.add("a", 2, "4", 1)
    assert contents(gathering.take(50)) == [("a", 2, ["2", "4"]), ("a", 0, ["3"])]


def test_closed_batches_are_not_added_to() -> None:
    gathering: OpenBatches[str, int] = OpenBatches(10, 100)
    gathering.add("a", 0, "1", 1)
    gathering.close_all()
    gathering.add("a", 0, "2", 1)
    assert [one.messages for one in gathering.take(100)] == [["1"], ["2"]]


class SlowWatcher:
    """A future whose batch cannot be used by others while ``start`` runs."""

    row = 0

    def __init__(self) -> None:
        self.begun = threading.Event()

    def start(self, state: str, result: int | None, exception: BaseException | None, /) -> bool:
        self.begun.set()
        threading.Event().wait(0.2)
        return True

    def set_running_or_notify_cancel(self) -> bool:
        return True

    def set_result(self, result: int, /) -> None: ...

    def set_exception(self, exception: BaseException, /) -> None: ...


def test_a_child_sends_although_a_thread_of_its_parent_used_a_batch() -> None:
    watcher = SlowWatcher()
    thread = threading.Thread(target=MessageBatch[str, int]("a", 0).watch, args=(watcher,))
    thread.start()
    assert watcher.begun.wait(60)

    def sends() -> bool:
        signal.alarm(20)
        batch: MessageBatch[str, int] = MessageBatch("a", 0)
        batch.messages.append("1")
        batch.begin()
        batch.settle([7])
        return batch.outcomes == [7]

    assert in_child(sends)
    thread.join()


def test_messages_have_failures_of_their_own_beside_those_that_were_cancelled() -> None:
    batch: MessageBatch[str, int] = MessageBatch("a", 0)
    batch.messages += ["cancelled", "refused", "stored", "not sent", "refused, too"]
    futures = [future_of((batch, row)) for row in range(5)]
    assert futures[0].cancel()
    assert not futures[1].done()  # somebody watches it
    batch.begin()
    common, first, second = ValueError("common"), ValueError("first"), ValueError("second")
    batch.settle([None, 7, None, None], common, {0: first, 3: second})
    assert [future.exception() for future in futures[1:]] == [first, None, common, second]
    assert futures[2].result() == 7
