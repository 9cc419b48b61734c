"""Which segments leave: texts in, policies out; lists of segments in, lists out."""

from __future__ import annotations

from pathlib import Path

import pytest
from metaq_broker.log.retention.policy import Removal, RetentionPolicy
from metaq_broker.log.segments.segment import SegmentInfo

NOW_MS = 1_000_000_000
SECOND, MINUTE, HOUR = 1000, 60_000, 3_600_000


@pytest.mark.parametrize(
    ("text", "removal", "age_ms"),
    [
        ("delete,168", Removal.DELETE, 168 * HOUR),
        ("delete,168h", Removal.DELETE, 168 * HOUR),
        ("delete,90m", Removal.DELETE, 90 * MINUTE),
        ("delete,1s", Removal.DELETE, SECOND),
        ("delete,0", Removal.DELETE, 0),
        ("delete, 24", Removal.DELETE, 24 * HOUR),
        ("archive,24", Removal.ARCHIVE, 24 * HOUR),
        ("archive,24,false", Removal.ARCHIVE, 24 * HOUR),
        ("archive,10s,true", Removal.ARCHIVE_PACKED, 10 * SECOND),
        (" archive , 10s , true ", Removal.ARCHIVE_PACKED, 10 * SECOND),
        ("delete,999999999", Removal.DELETE, 999_999_999 * HOUR),
    ],
)
def test_a_policy_is_read(text: str, removal: Removal, age_ms: int) -> None:
    assert RetentionPolicy.parse(text) == RetentionPolicy(removal, age_ms)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "delete",
        "delete,",
        "delete,x",
        "delete,1d",
        "delete,-1",
        "delete,1.5h",
        "delete,1h,true",
        "delete,1,2",
        "Delete,1",
        "archive",
        "archive,1,yes",
        "archive,1,true,true",
        "archive,1,",
        "remove,1",
        "delete,1000000000",
        "delete,\u0661",
        "delete,1 h",
    ],
)
def test_a_wrong_policy_is_answered_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ValueError, match=r"delete,TIME or archive,TIME\[,true\]; TIME is .* hours, or .* s, m or h"):
        RetentionPolicy.parse(text)


def partition(*ages_ms: int) -> list[SegmentInfo]:
    """Segments last written so long ago; the last one is being written."""
    last = len(ages_ms) - 1
    return [
        SegmentInfo(
            partition_key * 100,
            100,
            Path(str(partition_key)),
            Path(f"{partition_key}.index"),
            NOW_MS - age_ms,
            partition_key != last,
        )
        for partition_key, age_ms in enumerate(ages_ms)
    ]


@pytest.mark.parametrize(
    ("ages_ms", "expired"),
    [
        ([0], 0),
        ([9000], 0),  # the only one is being written, however old
        ([9000, 9000], 1),
        ([1001, 0], 1),
        ([1000, 0], 0),  # not older than a second, exactly one
        ([999, 0], 0),
        ([3000, 2000, 1000, 0], 2),
        ([9000, 8000, 7000, 6000], 3),
        ([3000, 500, 2000, 0], 1),  # what is behind a kept one is kept
        ([500, 3000, 2000, 0], 0),
        ([-5000, 3000, 0], 0),  # written in the future: the clock was set back
    ],
)
def test_a_front_part_of_old_segments_leaves(ages_ms: list[int], expired: int) -> None:
    segments = partition(*ages_ms)
    assert RetentionPolicy(Removal.DELETE, SECOND).expired(segments, NOW_MS) == segments[:expired]


@pytest.mark.parametrize(("written_s", "expired"), [(None, 2), (98.9, 2), (99.0, 0), (100.0, 0)])
def test_messages_since_the_start_are_as_old_as_the_growing_clock_says(written_s: float | None, expired: int) -> None:
    """The wall clock went ten years ahead meanwhile."""
    segments = [segment._replace(written_s=written_s) for segment in partition(10**12, 10**12, 0)]
    assert len(RetentionPolicy(Removal.DELETE, SECOND).expired(segments, NOW_MS, 100.0)) == expired


def test_with_no_time_at_all_every_finished_segment_leaves() -> None:
    segments = partition(5, 3, 1, 0)
    assert RetentionPolicy.parse("delete,0").expired(segments, NOW_MS) == segments[:3]
