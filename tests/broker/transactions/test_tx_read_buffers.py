"""Memory for reading is used again when, and only when, nobody looks at what was read into it."""

from __future__ import annotations

import threading

from metaq_broker.transactions.read_buffers import ReadBuffers

KIB = 1 << 10


def test_a_buffer_is_given_out_again_when_no_view_of_it_is_left() -> None:
    buffers = ReadBuffers()
    first = buffers.take(100 * KIB)
    which = id(first.obj)
    part = first[10:20]
    del first
    other = buffers.take(100 * KIB)
    assert id(other.obj) != which, "a part of it is still looked at"
    del part
    assert id(buffers.take(200 * KIB).obj) == which
    assert id(buffers.take(300 * KIB).obj) != which, "too short"
    assert buffers.kept_bytes == (256 + 256 + 512) * KIB


def test_two_readers_never_share_one() -> None:
    buffers, taken = ReadBuffers(), []

    def take() -> None:
        for _ in range(300):
            check_space = buffers.take(70 * KIB)
            mine = b"%16d" % threading.get_ident()
            check_space[:16] = mine
            taken.append(bytes(check_space[:16]) == mine)
            kept = buffers.take(70 * KIB)
            kept[:16] = b"?" * 16
            taken.append(bytes(check_space[:16]) == mine)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert taken == [True] * 2400
    assert buffers.kept_bytes <= 8 * 256 * KIB


def test_only_so_much_is_kept_and_nothing_small() -> None:
    buffers = ReadBuffers(kept_bytes_max=1000 * KIB)
    views = [buffers.take(300 * KIB) for _ in range(5)]
    assert buffers.kept_bytes == 512 * KIB
    assert {len(view) for view in views} == {300 * KIB}
    del views
    kept = buffers.kept_bytes
    assert [len(buffers.take(size)) for size in (0, 1, 1000)] == [0, 1, 1000]
    assert buffers.kept_bytes == kept
