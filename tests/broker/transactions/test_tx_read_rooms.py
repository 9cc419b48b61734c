"""Memory for reading is used again when, and only when, nobody looks at what was read into it."""

from __future__ import annotations

import threading

from metaq_broker.transactions.read_rooms import ReadRooms

KIB = 1 << 10


def test_a_room_is_given_out_again_when_no_view_of_it_is_left() -> None:
    rooms = ReadRooms()
    first = rooms.take(100 * KIB)
    which = id(first.obj)
    part = first[10:20]
    del first
    other = rooms.take(100 * KIB)
    assert id(other.obj) != which, "a part of it is still looked at"
    del part
    assert id(rooms.take(200 * KIB).obj) == which
    assert id(rooms.take(300 * KIB).obj) != which, "too short"
    assert rooms.kept_bytes == (256 + 256 + 512) * KIB


def test_two_readers_never_share_one() -> None:
    rooms, taken = ReadRooms(), []

    def take() -> None:
        for _ in range(300):
            room = rooms.take(70 * KIB)
            mine = b"%16d" % threading.get_ident()
            room[:16] = mine
            taken.append(bytes(room[:16]) == mine)
            kept = rooms.take(70 * KIB)
            kept[:16] = b"?" * 16
            taken.append(bytes(room[:16]) == mine)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert taken == [True] * 2400
    assert rooms.kept_bytes <= 8 * 256 * KIB


def test_only_so_much_is_kept_and_nothing_small() -> None:
    rooms = ReadRooms(kept_bytes_max=1000 * KIB)
    views = [rooms.take(300 * KIB) for _ in range(5)]
    assert rooms.kept_bytes == 512 * KIB
    assert {len(view) for view in views} == {300 * KIB}
    del views
    kept = rooms.kept_bytes
    assert [len(rooms.take(size)) for size in (0, 1, 1000)] == [0, 1, 1000]
    assert rooms.kept_bytes == kept
