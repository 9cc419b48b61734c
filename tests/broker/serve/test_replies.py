"""Replies of one connection leave in the order of its requests, whatever becomes ready first."""

from __future__ import annotations

from metaq_broker.log.files.files import FileHandle, Files
from metaq_broker.log.partitions.reads import Slice
from metaq_broker.serve.replies import FileReply, ReplyQueue


class Woken:
    """Counts how often the queue asked to be looked at."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> None:
        self.times += 1


def test_ready_replies_go_out_together_and_wait_behind_an_unfinished_one() -> None:
    woken = Woken()
    queue = ReplyQueue(woken)
    queue.add(b"1")
    pending = queue.pending(3)
    queue.add(b"5")
    assert queue.take(100) == (b"1", None, False)
    assert (queue.take(100), queue.waiting, queue.unanswered) == ((b"", None, False), True, 4)
    pending.complete(b"234")
    assert (woken.times, queue.ready_bytes) == (1, 4)
    assert queue.take(100) == (b"2345", None, False)
    assert (queue.unanswered, queue.ready_bytes, queue.empty) == (0, 0, True)


def test_questions_are_asked_in_their_order() -> None:
    queue = ReplyQueue(Woken())
    stored: list[bytes] = []
    pending = queue.pending()
    queue.ask(lambda: b"".join(stored))
    assert queue.take(100)[0] == b""
    stored.append(b"what the put stored")
    pending.complete(b"put done, ")
    assert queue.take(100)[0] == b"put done, what the put stored"


def test_a_file_ends_what_is_taken_at_once() -> None:
    queue = ReplyQueue(Woken())
    reply = FileReply(b"head", Slice(FileHandle(Files(), -1), 0, 10, 0))
    queue.add(b"before")
    queue.ask(lambda: reply)
    queue.add(b"behind")
    assert queue.take(100) == (b"before", reply, False)
    assert queue.take(100) == (b"behind", None, False)


def test_no_more_is_taken_than_wanted() -> None:
    queue = ReplyQueue(Woken())
    for text in (b"aaaa", b"bbbb", b"cccc"):
        queue.add(text)
    assert queue.take(5)[0] == b"aaaabbbb"
    assert queue.take(5)[0] == b"cccc"


def test_nothing_is_taken_behind_the_end_mark() -> None:
    queue = ReplyQueue(Woken())
    queue.add(b"last")
    queue.end()
    queue.add(b"never sent")
    assert (queue.take(100)[0], queue.ended) == (b"last", True)
    assert queue.take(100) == (b"", None, False)


def test_what_is_ready_leaves_before_replies_that_are_waited_for() -> None:
    woken = Woken()
    queue = ReplyQueue(woken)
    pending = queue.pending()
    queue.unanswered += 2
    assert (queue.unanswered, queue.empty, queue.settled) == (3, False, False)
    queue.push(b"second reply ", answers=1)
    queue.push(b"a request of the broker's own")
    assert (woken.times, queue.unanswered, queue.ready_bytes) == (2, 2, 42)
    assert queue.take(100) == (b"second reply a request of the broker's own", None, False)
    assert (queue.ready_bytes, queue.waiting) == (0, True)
    pending.complete(b"first reply ")
    queue.push(b"third reply ", answers=1)
    assert queue.take(100)[0] == b"third reply first reply "
    assert (queue.unanswered, queue.empty, queue.ready_bytes) == (0, True, 0)
    assert queue.settled
    queue.unanswered += 1
    assert (queue.empty, queue.settled) == (True, False)


def test_who_is_gone_gets_nothing_that_was_pushed() -> None:
    woken = Woken()
    queue = ReplyQueue(woken)
    queue.push(b"late", answers=0)
    queue.abandon()
    queue.push(b"later", 1)
    assert woken.times == 1
    assert (queue.empty, queue.take(1 << 20)[0]) == (True, b"")


def test_an_answer_that_takes_long_is_made_in_parts() -> None:
    queue = ReplyQueue(Woken())
    parts = iter([None, None, b"answer, "])
    queue.add(b"before")
    queue.ask(lambda: next(parts))
    queue.add(b"behind")
    assert queue.take(100) == (b"before", None, True)
    assert (queue.take(100), queue.questions, queue.unanswered) == ((b"", None, True), 1, 2)
    assert queue.take(100) == (b"answer, behind", None, False)
    assert (queue.questions, queue.unanswered, queue.empty) == (0, 0, True)
