"""What recovery makes of files that were cut, flipped, zeroed and overwritten.

Every case compares what a reader gets with what was stored: a message is served unaltered at its offset or not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from examples import spread
from metaq_broker.log.partitions.partition_log import LogSettings, PartitionLog, Verify
from metaq_broker.log.segments import index
from stored import (
    FOLDER,
    ONE_SEGMENT,
    SMALL,
    by_offset,
    contents,
    filled,
    frame,
    frames,
    last_segment,
    message_id,
    open_log,
)

from metaq.formats.frame_block import FrameBlock
from metaq.formats.frames import HEADER_BYTES, encode_frame
from metaq.model import OffsetRange

UNINDEXED = LogSettings(segment_bytes_max=1 << 30, index_interval_bytes=1 << 20)


def segments_of(root: Path) -> list[Path]:
    return sorted((root / FOLDER).glob("*.meta"))


def drop_indexes(root: Path) -> None:
    for path in (root / FOLDER).glob("*.index"):
        path.unlink()


def edit(path: Path, change: Callable[[bytearray], object]) -> None:
    content = bytearray(path.read_bytes())
    change(content)
    path.write_bytes(content)


def flip(path: Path, position: int, bit: int) -> None:
    def change(content: bytearray) -> None:
        content[position] ^= 1 << bit

    edit(path, change)


def overwrite(path: Path, position: int, data: bytes) -> None:
    def change(content: bytearray) -> None:
        content[position : position + len(data)] = data

    edit(path, change)


class Saved:
    """All files of a partition, to start over from."""

    def __init__(self, root: Path) -> None:
        self.files = {path: path.read_bytes() for path in (root / FOLDER).iterdir()}

    def restore(self) -> None:
        for path in next(iter(self.files)).parent.iterdir():
            path.unlink()
        for path, content in self.files.items():
            path.write_bytes(content)


def check_goes_on(root: Path, log: PartitionLog, settings: LogSettings) -> None:
    """Recovered logs take appends, and opening them again finds nothing more to do."""
    before = contents(log)
    extra = frame(9999)
    at = log.append([extra])
    log.sync()
    assert contents(log) == before | {at: extra}
    quarantined = log.quarantined
    log.close(clean=False)
    again = open_log(root, settings, verify="full")
    assert contents(again) == before | {at: extra}
    assert again.quarantined == quarantined
    assert not again.recovery.bytes_cut
    assert not again.recovery.damage


# ---- torn tails


# I7
def test_a_tail_torn_at_any_byte_is_cut_and_reported(tmp_path: Path) -> None:
    stored = frames(12)
    offsets = filled(tmp_path, stored, UNINDEXED, clean=False)
    content = last_segment(tmp_path).read_bytes()
    for size in range(offsets[-3], len(content)):
        last_segment(tmp_path).write_bytes(content[:size])
        drop_indexes(tmp_path)
        log = open_log(tmp_path, UNINDEXED)
        whole = {at: item for at, item in by_offset(stored).items() if at + len(item) <= size}
        end = sum(map(len, whole.values()))
        assert contents(log) == whole
        assert (log.readable_end, log.recovery.bytes_cut) == (end, size - end)
        assert log.recovery.cut_at == (end if size > end else None)
        assert last_segment(tmp_path).stat().st_size == end
        assert not log.quarantined
        check_goes_on(tmp_path, log, UNINDEXED)


TAILS = {
    "zeros": bytes(500),
    "one zero": bytes(1),
    "twenty zeros": bytes(20),
    "zeros longer than any read": bytes(3 << 20),
    "a header whose body is missing": frame(50)[:HEADER_BYTES],
    "a frame and zeros in its body": frame(50, b"b" * 400)[:100] + bytes(320),
    "text": b"this is no frame at all, it is just text " * 10,
    "a negative length": b"\xff\xff\xff\xff" + frame(50)[4:],
    "a large frame, torn": frame(50, b"z" * 100_000)[:-1],
    "a large frame of frames, torn": frame(50, b"".join(frames(200, 300)))[:-1],
    "a large frame of frames, torn between two of them": frame(50, b"".join(frames(3, 300)))[: -len(frame(302))],
}


@pytest.mark.parametrize("tail", TAILS.values(), ids=TAILS)
@pytest.mark.parametrize("clean", [False, True], ids=["unclean", "clean"])
def test_a_torn_tail_is_no_message(tail: bytes, clean: bool, tmp_path: Path) -> None:
    stored = frames(10)
    filled(tmp_path, stored, clean=clean)
    edit(last_segment(tmp_path), lambda content: content.extend(tail))
    log = open_log(tmp_path)
    assert contents(log) == by_offset(stored)
    assert (log.recovery.bytes_cut, log.recovery.cut_at) == (len(tail), log.readable_end)
    assert not log.quarantined
    check_goes_on(tmp_path, log, ONE_SEGMENT)


def test_an_empty_message_is_a_message(tmp_path: Path) -> None:
    stored = [frame(1, b""), frame(2), frame(3, b""), frame(4, b"")]
    filled(tmp_path, stored, clean=False)
    drop_indexes(tmp_path)
    assert contents(open_log(tmp_path)) == by_offset(stored)


# I7
def test_acknowledged_bytes_are_never_cut(tmp_path: Path) -> None:
    """The index says that the last message was durable: its offset must not be given to another one."""
    stored = frames(10)
    offsets = filled(tmp_path, stored)
    overwrite(last_segment(tmp_path), offsets[-1] + 25, bytes(len(stored[-1]) - 25))
    log = open_log(tmp_path)
    end = offsets[-1] + len(stored[-1])
    assert log.quarantined == [OffsetRange(offsets[-1], end)]
    assert (log.end_offset, log.recovery.bytes_cut) == (end, 0)
    assert contents(log) == by_offset(stored[:-1])


# I7
@pytest.mark.parametrize("rubble", [b"", b"\xff" * 20, bytes(20)], ids=["body", "ones", "zeros"])
def test_the_end_of_an_older_segment_is_never_cut(rubble: bytes, tmp_path: Path) -> None:
    """Not even without an index: the next segment says where it ended."""
    stored = frames(60)
    offsets = filled(tmp_path, stored, SMALL)
    first, second, *_ = segments_of(tmp_path)
    end = int(second.stem)
    victim = offsets.index(end) - 1
    flip(first, end - 1, 0)
    overwrite(first, offsets[victim], rubble)
    drop_indexes(tmp_path)
    log = open_log(tmp_path, SMALL)
    assert log.quarantined == [OffsetRange(offsets[victim], end)]
    assert contents(log) == by_offset(stored[:victim]) | by_offset(stored[victim + 1 :], end)
    check_goes_on(tmp_path, log, SMALL)


def test_durable_bytes_that_are_gone_are_reported(tmp_path: Path) -> None:
    stored = frames(10)
    offsets = filled(tmp_path, stored)
    edit(last_segment(tmp_path), lambda content: content.__delitem__(slice(offsets[-2], None)))
    log = open_log(tmp_path)
    assert log.recovery.missing_bytes == len(stored[-2]) + len(stored[-1])
    assert any("gone" in sentence for sentence in log.recovery.warnings())
    assert contents(log) == by_offset(stored[:-2])


# ---- flipped bits

FIELDS = {"length": range(4), "checksum": range(4, 8), "id": range(8, 16), "flag": range(16, 20)}


# I7
@pytest.mark.parametrize(("settings", "verify"), [(ONE_SEGMENT, "tail"), (SMALL, "full")], ids=["last", "older"])
def test_any_flipped_bit_costs_one_message(settings: LogSettings, verify: Verify, tmp_path: Path) -> None:
    stored = frames(30)
    offsets = filled(tmp_path, stored, settings)
    segment, saved = segments_of(tmp_path)[0], Saved(tmp_path)
    victim = 6
    for position in spread(range(offsets[victim], offsets[victim + 1])):
        for bit in range(8):
            saved.restore()
            flip(segment, position, bit)
            log = open_log(tmp_path, settings, verify=verify)
            assert contents(log) == by_offset(stored[:victim]) | by_offset(stored[victim + 1 :], offsets[victim + 1])
            assert log.quarantined == [OffsetRange(offsets[victim], offsets[victim + 1])]
            assert log.message_count == len(stored) - 1
            assert [log.ordinal(at) for at in offsets] == list(range(len(stored)))
            log.close(clean=False)


@pytest.mark.parametrize("victim", [0, 5, 9], ids=["first", "middle", "last"])
def test_any_flipped_bit_without_an_index(victim: int, tmp_path: Path) -> None:
    """Then nothing covers ids and flags; bodies are still never wrong, and nothing else is lost."""
    stored = frames(10)
    offsets = [*filled(tmp_path, stored, UNINDEXED, clean=False), sum(map(len, stored))]
    drop_indexes(tmp_path)
    segment, saved = last_segment(tmp_path), Saved(tmp_path)
    for position in spread(range(offsets[victim], offsets[victim + 1])):
        for bit in range(8):
            saved.restore()
            flip(segment, position, bit)
            log = open_log(tmp_path, UNINDEXED)
            found = contents(log)
            others = by_offset(stored)
            del others[offsets[victim]]
            assert others.items() <= found.items()
            if position - offsets[victim] in (*FIELDS["id"], *FIELDS["flag"]):
                assert found[offsets[victim]][HEADER_BYTES:] == stored[victim][HEADER_BYTES:]
            else:
                assert len(found) == len(others)
            log.close(clean=False)


@pytest.mark.parametrize("victim", [0, 29], ids=["first", "last"])
def test_flipped_header_bits_at_the_ends(victim: int, tmp_path: Path) -> None:
    stored = frames(30)
    offsets = [*filled(tmp_path, stored), sum(map(len, stored))]
    saved = Saved(tmp_path)
    for position in range(offsets[victim], offsets[victim] + HEADER_BYTES):
        saved.restore()
        flip(last_segment(tmp_path), position, 3)
        log = open_log(tmp_path)
        assert log.quarantined == [OffsetRange(offsets[victim], offsets[victim + 1])]
        assert len(contents(log)) == len(stored) - 1
        assert log.end_offset == offsets[-1]
        log.close(clean=False)


def test_many_changed_header_bits_are_reported_and_the_bodies_served(tmp_path: Path) -> None:
    stored = frames(30)
    offsets = filled(tmp_path, stored)
    overwrite(last_segment(tmp_path), offsets[3] + 8, b"\0\0\0\0\0\0\0\7")
    log = open_log(tmp_path)
    assert [item[HEADER_BYTES:] for item in contents(log).values()] == [item[HEADER_BYTES:] for item in stored]
    (suspect,) = log.recovery.suspect
    assert suspect.start <= offsets[3] < suspect.end


# ---- damage of more than one bit

DAMAGE = {
    "zeros over a whole message": lambda size: bytes(size),
    "ones over a whole message": lambda size: b"\xff" * size,
    "text over a whole message": lambda size: (b"lorem ipsum dolor sit amet " * size)[:size],
    "zeros over the header": lambda size: bytes(HEADER_BYTES),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("indexed", [True, False], ids=["index", "no-index"])
def test_an_overwritten_message_costs_one_message(
    damage: Callable[[int], bytes], indexed: bool, tmp_path: Path
) -> None:
    stored = frames(30)
    offsets = filled(tmp_path, stored)
    victim = 11
    rubble = damage(len(stored[victim]))
    overwrite(last_segment(tmp_path), offsets[victim], rubble)
    if not indexed:
        drop_indexes(tmp_path)
    log = open_log(tmp_path)
    assert contents(log) == by_offset(stored[:victim]) | by_offset(stored[victim + 1 :], offsets[victim + 1])
    assert log.quarantined == [OffsetRange(offsets[victim], offsets[victim + 1])]
    check_goes_on(tmp_path, log, ONE_SEGMENT)


@pytest.mark.parametrize(("indexed", "lost"), [(True, [11]), (False, [11, 12])], ids=["index", "no-index"])
def test_a_header_that_looks_sane_is_not_searched_behind_without_an_index(
    indexed: bool, lost: list[int], tmp_path: Path
) -> None:
    stored = frames(30)
    offsets = filled(tmp_path, stored)
    overwrite(last_segment(tmp_path), offsets[11], frame(77)[:HEADER_BYTES])
    if not indexed:
        drop_indexes(tmp_path)
    found = contents(open_log(tmp_path))
    assert [number for number, at in enumerate(offsets) if at not in found] == lost
    assert found.items() <= by_offset(stored).items()


@pytest.mark.parametrize("indexed", [True, False], ids=["index", "no-index"])
def test_a_lost_sector_costs_the_messages_it_touches(indexed: bool, tmp_path: Path) -> None:
    stored = frames(200)
    offsets = filled(tmp_path, stored)
    overwrite(last_segment(tmp_path), 2048, bytes(512))
    if not indexed:
        drop_indexes(tmp_path)
    log = open_log(tmp_path)
    untouched = {at: item for at, item in by_offset(stored).items() if at + len(item) <= 2048 or at >= 2560}
    assert contents(log) == untouched
    assert sum(map(len, log.quarantined)) == sum(map(len, stored)) - sum(map(len, untouched.values()))
    if indexed:
        assert log.message_count == len(untouched)
        assert log.ordinal(offsets[-1]) == len(stored) - 1


# ---- frames inside payloads

EMBEDDED = [b"".join(frames(8, 500)), b"".join(frames(8, 500)) + b"trailer", b"leader" + b"".join(frames(8, 500))]


@pytest.mark.parametrize("payload", EMBEDDED, ids=["exact", "trailer", "leader"])
@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("indexed", [True, False], ids=["index", "no-index"])
def test_frames_inside_a_damaged_message_are_not_messages(
    payload: bytes, field: str, indexed: bool, tmp_path: Path
) -> None:
    stored = [*frames(5), frame(5, payload), *frames(5, 6)]
    offsets = filled(tmp_path, stored)
    if not indexed:
        drop_indexes(tmp_path)
    saved = Saved(tmp_path)
    for position in FIELDS[field]:
        for bit in range(8):
            saved.restore()
            flip(last_segment(tmp_path), offsets[5] + position, bit)
            log = open_log(tmp_path)
            expected = by_offset(stored)
            found = contents(log)
            assert found.keys() <= expected.keys()
            del expected[offsets[5]]
            assert expected.items() <= found.items()
            log.close(clean=False)


@pytest.mark.parametrize("payload", EMBEDDED, ids=["exact", "trailer", "leader"])
@pytest.mark.parametrize("interval", [100, 4096])
def test_with_an_index_frames_behind_a_destroyed_header_are_counted(
    payload: bytes, interval: int, tmp_path: Path
) -> None:
    """Without its header nothing but the index's count tells that the frames in the payload are not messages."""
    settings = LogSettings(index_interval_bytes=interval)
    stored = [*frames(5), frame(5, payload), *frames(15, 6)]
    offsets = filled(tmp_path, stored, settings)
    overwrite(last_segment(tmp_path), offsets[5], b"\xee" * 20)
    log = open_log(tmp_path, settings)
    assert contents(log) == by_offset(stored[:5]) | by_offset(stored[6:], offsets[6])
    assert log.quarantined == [OffsetRange(offsets[5], offsets[6])]
    assert log.message_count == len(stored) - 1


def of_broker(broker_id: int, numbers: range) -> list[bytes]:
    ids = [(message_id(number) & ~(1023 << 12)) | broker_id << 12 for number in numbers]
    return [encode_frame(each, 0, b"from broker %d" % broker_id) for each in ids]


def check_without_an_index(folder: Path, stored: list[bytes]) -> None:
    """The header of the sixth frame is destroyed and no index is left: all other messages are found."""
    offsets = filled(folder, stored, UNINDEXED, clean=False)
    drop_indexes(folder)
    overwrite(last_segment(folder), offsets[5], b"\xee" * 20)
    log = open_log(folder, UNINDEXED)
    assert contents(log) == by_offset(stored[:5]) | by_offset(stored[6:], offsets[6])


def test_without_an_index_foreign_frames_in_a_payload_are_no_messages(tmp_path: Path) -> None:
    check_without_an_index(tmp_path, [*frames(5), frame(5, b"".join(of_broker(9, range(400, 408)))), *frames(5, 6)])


def test_a_log_whose_broker_got_another_id_goes_on_behind_damage(tmp_path: Path) -> None:
    check_without_an_index(tmp_path, [*frames(6), *of_broker(9, range(6, 12))])


# ---- remembering it


def test_damage_is_known_at_the_next_start_without_a_scan(tmp_path: Path) -> None:
    stored = frames(60)
    offsets = filled(tmp_path, stored, SMALL)
    flip(segments_of(tmp_path)[0], offsets[3] + 30, 1)
    log = open_log(tmp_path, SMALL, verify="full")
    assert log.quarantined == [OffsetRange(offsets[3], offsets[4])]
    assert [damage.messages for damage in log.recovery.damage] == [1]
    log.close()
    for verify in ("tail", "trust", "full"):
        log = open_log(tmp_path, SMALL, verify=verify)
        assert log.quarantined == [OffsetRange(offsets[3], offsets[4])]
        assert not log.recovery.damage
        assert offsets[3] not in contents(log)
        log.close()


@pytest.mark.parametrize("content", [None, b"", b"rubbish\n", b"metaq-quarantine 1\n1 2 3 x\ncrc32 00000000\n"])
def test_a_lost_quarantine_file(content: bytes | None, tmp_path: Path) -> None:
    """A damaged one is made again from all segments; a missing one, by a full verification."""
    stored = frames(60)
    offsets = filled(tmp_path, stored, SMALL)
    flip(segments_of(tmp_path)[0], offsets[3] + 30, 1)
    open_log(tmp_path, SMALL, verify="full").close()
    path = tmp_path / FOLDER / "quarantine"
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    log = open_log(tmp_path, SMALL, verify="full" if content is None else "tail")
    assert log.quarantined == [OffsetRange(offsets[3], offsets[4])]


@pytest.mark.parametrize("how", ["cut", "all segments gone"])
def test_quarantine_is_not_for_messages_to_come(how: str, tmp_path: Path) -> None:
    """Somebody takes the damaged end of the log away, or all of it: what comes now is not quarantined."""
    stored = frames(20)
    offsets = filled(tmp_path, stored)
    flip(last_segment(tmp_path), offsets[10] + 25, 0)
    log = open_log(tmp_path)
    assert log.quarantined == [OffsetRange(offsets[10], offsets[11])]
    log.close(clean=False)
    if how == "cut":
        edit(last_segment(tmp_path), lambda content: content.__delitem__(slice(offsets[8], None)))
    else:
        last_segment(tmp_path).unlink()
    log = open_log(tmp_path)
    end = offsets[-1] + len(stored[-1])
    assert log.quarantined == ([OffsetRange(offsets[8], end)] if how == "cut" else [])
    assert log.end_offset == (end if how == "cut" else 0)
    kept = contents(log)
    assert kept == (by_offset(stored[:8]) if how == "cut" else {})
    new = frames(20, 100)
    at = log.append(new)
    log.close()
    for verify in ("trust", "tail", "full"):
        log = open_log(tmp_path, verify=verify)
        assert contents(log) == kept | by_offset(new, at)
        log.close()


def test_a_bad_block_is_skipped_frame_by_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "BLOCK_INTERVAL_BYTES", 1)  # or three wrong frames would be between two entries
    log = open_log(tmp_path)
    items = frames(40)
    block = b"".join(items)
    log.append_blocks([FrameBlock(block, len(items))])
    log.sync()
    log.close()
    offsets = list(by_offset(items))
    for victim in (4, 5, 20):
        flip(last_segment(tmp_path), offsets[victim] + 24, 0)
    log = open_log(tmp_path)
    assert sorted(set(offsets) - contents(log).keys()) == [offsets[4], offsets[5], offsets[20]]


def test_damage_without_any_known_id_before_it(tmp_path: Path) -> None:
    stored = [encode_frame(message_id(1) - (1 << 63), 0, b"negative ids, as of a Java broker"), *frames(3)]
    offsets = filled(tmp_path, stored, UNINDEXED, clean=False)
    drop_indexes(tmp_path)
    overwrite(last_segment(tmp_path), 0, b"\xee" * 20)
    log = open_log(tmp_path, UNINDEXED)
    assert list(contents(log)) == offsets[1:]
