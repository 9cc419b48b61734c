"""MetaQ's frame is known to ``metaq/formats`` alone: nobody else takes a header apart or steps over frames by hand."""

from __future__ import annotations

import re

from sources import PRODUCT, Source, parse, sources

OWNER = "metaq/formats/"

STRUCT = re.compile(r"""["'][>!](?:[iIl]{2}q[iIl]?|Q8x[iI]|[iI]{2}8?x?12x)["']""")
"""The header, or its front, as a format of ``struct``."""

STEP = re.compile(
    r"HEADER_BYTES *\+ *(?:int\(|max\(0, )*(?:_?[A-Z_]+\.unpack|int\.from_bytes)"
    r"|HEADER_BYTES: Final = 20\b"
)
"""The size of a frame by its length, or the size of a header, made anew."""


def steps(source: Source) -> list[str]:
    """Return the lines in which a frame is taken apart."""
    return [
        f"{source.path}:{number} {line.strip()[:90]}"
        for number, line in enumerate(source.text.splitlines(), 1)
        if STRUCT.search(line) or STEP.search(line)
    ]


def test_only_the_owner_takes_frames_apart() -> None:
    found = [row for source in sources(*PRODUCT) if not source.path.startswith(OWNER) for row in steps(source)]
    assert found == []


def test_frames_that_are_taken_apart_are_found() -> None:
    lines = (
        '_HEADER: Final = struct.Struct(">iiqi")',
        'length, crc, message_id = struct.unpack(">iiq", data)',
        '_HEADER: Final = struct.Struct(">IIqi")',
        "end = at + HEADER_BYTES + int.from_bytes(data[at : at + 4], signed=True)",
        "at += HEADER_BYTES + _LENGTH.unpack_from(data, at)[0]",
        "end = offset + HEADER_BYTES + max(0, int.from_bytes(data[:4]))",
        "_HEADER_BYTES: Final = 20",
    )
    for line in lines:
        assert steps(parse("metaq/x.py", line)) != [], line
    for line in (
        '_PAIR = struct.Struct(">ii")',
        "end = at + HEADER_BYTES + len(body)",
        "FILE_HEADER_BYTES: Final = 24",
    ):
        assert steps(parse("metaq/x.py", line)) == [], line
