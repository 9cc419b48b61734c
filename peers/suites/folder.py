"""The folder with the compiled suites."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from peers.maven import Unavailable

BUNDLED: Final = ("junit", "opentest4j", "apiguardian", "hamcrest")
"""Jars of JUnit's console, in one version for all suites."""

TEST_NAMES: Final = ("*Test.class", "*Test2.class", "*IT.class")


@dataclass(frozen=True, slots=True)
class CompiledSuite:
    """One suite: ``test-classes``, ``lib`` with its dependencies, and ``classes`` if it has any."""

    name: str
    folder: Path

    @property
    def class_path(self) -> list[str]:
        """Its classes and jars, without JUnit."""
        jars = sorted(each for each in (self.folder / "lib").glob("*.jar") if not each.name.startswith(BUNDLED))
        return [str(self.folder / "classes"), str(self.folder / "test-classes"), *map(str, jars)]

    def test_classes(self) -> Iterator[str]:
        """Yield the names of the classes that may have tests, in alphabetical order."""
        root = self.folder / "test-classes"
        files = {file for pattern in TEST_NAMES for file in root.rglob(pattern) if "$" not in file.name}
        for file in sorted(files):
            yield ".".join(file.relative_to(root).with_suffix("").parts)


def compiled_suite(folder: Path, name: str) -> CompiledSuite:
    """Return the suite in ``folder/name``.

    Raises:
        Unavailable: It is missing, or not compiled.
    """
    suite = CompiledSuite(name, (folder / name).resolve())
    for part in ("test-classes", "lib"):
        if not any((suite.folder / part).glob("*")):
            raise Unavailable(f"the suite {name}: {suite.folder / part} is missing or empty; see docs/testing.md")
    return suite
