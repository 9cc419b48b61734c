"""docs/architecture.md tells a reader where to look: what it names is there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PLACES = re.findall(r"^\| (.*) \| `([\w/]+\.py)` \| (`.*`) \|$", PAGE, re.MULTILINE)
"""The rows of "Where to look": behaviour, file, names."""


def test_places_are_there() -> None:
    named = re.findall(r"`((?:metaq|metaq_spark|broker|jobs|tests)/[\w/.]*)`", PAGE)
    assert len(named) > 5
    assert not [place for place in named if not (ROOT / place).exists()]


def test_behaviours_are_in_the_file_beside_them() -> None:
    assert len(PLACES) >= 30
    missing = [
        f"{file}: {name}"
        for _, file, names in PLACES
        for name in re.findall(r"`(\w+)`", names)
        if not re.search(
            rf"^(?:class |def |async def )?{name}\b", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE
        )
    ]
    assert not missing


def test_files_in_brackets_are_in_the_folder_of_the_row_or_have_a_whole_path() -> None:
    named = [(file, other) for behaviour, file, _ in PLACES for other in re.findall(r"`([\w/]+\.py)`", behaviour)]
    assert len(named) > 10
    assert not [
        other for file, other in named if not ((ROOT / file).parent / other).exists() and not (ROOT / other).exists()
    ]
