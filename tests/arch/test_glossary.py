"""The words that docs/glossary.md says are not used stay out of names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest
from sources import ROOT, Source, parse, sources

PAGE = ROOT / "docs" / "glossary.md"
FOLDERS = (
    *("metaq", "metaq_spark", "broker/metaq_broker", "console/metaq_console"),
    *("jobs", "faults", "benchmarks", "peers"),
)


def unused_words() -> set[str]:
    rows = [line.split("|") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return {
        word.strip() for row in rows if row[-2].strip() != "not used" for word in row[-2].split(",") if word.strip()
    }


def words_of(name: str) -> set[str]:
    """``PendingReply`` and ``pending_reply`` are both of ``pending`` and ``reply``."""
    return set(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().replace("in_place", "").split("_"))


def names(source: Source) -> Iterator[tuple[str, int]]:
    yield source.path.rpartition("/")[2].removesuffix(".py"), 1
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.lineno


def wrongly_named(source: Source, unused: set[str]) -> list[str]:
    phrases = {frozenset(word.split()) for word in unused}
    return [
        f"{source.path}:{line} {name}"
        for name, line in names(source)
        for words in [words_of(name)]
        if any(phrase <= words for phrase in phrases)
    ]


@pytest.mark.parametrize("folder", FOLDERS)
def test_names_have_the_words_of_the_glossary(folder: str) -> None:
    unused = unused_words()
    assert {"room", "turn", "held", "in step"} <= unused
    assert [row for source in sources(folder) for row in wrongly_named(source, unused)] == []


def test_a_wrong_name_is_found() -> None:
    text = "class BlockRooms: ...\ndef take_turn(): ...\ndef stay_in_step(): ...\n"
    text += "def returned(): ...\ndef replace(): ...\n"
    found = wrongly_named(parse("metaq/x.py", text), {"turn", "rooms", "in step", "place"})
    assert [row.split()[1] for row in found] == ["BlockRooms", "take_turn", "stay_in_step"]
