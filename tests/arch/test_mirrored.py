"""The tests of a folder of code are in the folder of the same path below ``tests``."""

from __future__ import annotations

from pathlib import Path

import pytest
from sources import ROOT

CODE = {
    "metaq": "metaq",
    "metaq_spark": "metaq_spark",
    "broker": "broker/metaq_broker",
    "console": "console/metaq_console",
    "faults": "faults",
    "jobs": "jobs",
    "benchmarks": "benchmarks",
}
"""Folders of ``tests``, and the code that they mirror."""

TESTED_ABOVE = {
    "faults/load",  # runs of seconds in tests/faults
    "faults/scenarios",
}


def folders(top: Path, pattern: str) -> set[str]:
    """Folders at and below ``top`` that have such files themselves, as paths below it."""
    found = {path.parent for path in top.rglob(pattern) if path.name != "__init__.py"}
    return {folder.relative_to(top).as_posix() for folder in found}


@pytest.mark.parametrize("tests", CODE)
def test_each_folder_of_code_has_its_tests(tests: str) -> None:
    code = folders(ROOT / CODE[tests], "*.py")
    above = {Path(each).relative_to(tests).as_posix() for each in TESTED_ABOVE if each.startswith(f"{tests}/")}
    assert code, "nothing to look at"
    assert above <= code, "the list excepts nothing"
    assert code - above - folders(ROOT / "tests" / tests, "test_*.py") == set()


@pytest.mark.parametrize("tests", CODE)
def test_each_folder_of_tests_has_its_code(tests: str) -> None:
    code = {path.relative_to(ROOT / CODE[tests]) for path in (ROOT / CODE[tests]).rglob("*") if path.is_dir()}
    tested = {Path(folder) for folder in folders(ROOT / "tests" / tests, "test_*.py")}
    assert tested - code - {Path()} == set()


def test_a_folder_is_found_with_what_is_in_it(tmp_path: Path) -> None:
    for path in ("one.py", "a/b/two.py", "c/__init__.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    assert folders(tmp_path, "*.py") == {".", "a/b"}
