"""The project's own Python files, parsed once, and only where somebody looks at the tree."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PRODUCT = ("metaq", "metaq_spark", "broker/metaq_broker", "console/metaq_console", "jobs")
"""Folders that are shipped or run by users; tests and benchmarks are judged less strictly."""


CALLS = ("import_module", "__import__")
"""Functions that import what they are given."""


@dataclass(frozen=True)
class Source:
    """One file: its path below the root with slashes, its text, and its syntax tree."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @cached_property
    def imported(self) -> list[tuple[str, int, bool]]:
        """What ``imports`` yields, and whether it stands below ``if TYPE_CHECKING``."""
        found: list[tuple[str, int, bool]] = []
        _collect(self, self.tree, False, any(call in self.text for call in CALLS), found)
        return found

    @property
    def module(self) -> str:
        """The name under which it is imported, for example ``metaq.formats.frames``."""
        dotted = self.path.removeprefix("broker/").removeprefix("console/").removesuffix(".py").replace("/", ".")
        return dotted.removesuffix(".__init__")

    @property
    def package(self) -> str:
        """The name that one dot of a relative import stands for."""
        return self.module if self.path.endswith("/__init__.py") else self.module.rpartition(".")[0]


@cache
def sources(*folders: str) -> tuple[Source, ...]:
    """Return the files of some folders, in the order of their paths."""
    paths = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return tuple(_parsed(path) for path in paths)


@cache
def _parsed(path: Path) -> Source:
    """One file; folders that are asked for overlap."""
    return parse(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))


def parse(path: str, text: str) -> Source:
    return Source(path, text)


def imports(source: Source, *, for_types: bool = True) -> Iterator[tuple[str, int]]:
    """Yield ``(dotted name, line)`` of everything a file imports, anywhere in it.

    ``from a import b`` yields ``a.b``, for b may be a module. Relative imports come out as absolute names; one that
    climbs out of its own top package comes out as ``..``. Names given to ``import_module`` or ``__import__`` count.
    Without ``for_types``, what stands below ``if TYPE_CHECKING`` is left out.
    """
    return ((name, line) for name, line, is_for_types in source.imported if for_types or not is_for_types)


def _collect(
    source: Source, node: ast.AST, for_types: bool, with_calls: bool, found: list[tuple[str, int, bool]]
) -> None:
    """Add what ``node`` and all below it import. Only calls stand in expressions."""
    if isinstance(node, ast.Import):
        found += [(alias.name, node.lineno, for_types) for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        base = _absolute(source, node)
        found += [(f"{base}.{alias.name}" if base != ".." else "..", node.lineno, for_types) for alias in node.names]
    elif isinstance(node, ast.Call) and _called(node) in CALLS and node.args:
        name = node.args[0]
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            found.append((name.value, node.lineno, for_types))
    elif isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        for_types = True
    for child in ast.iter_child_nodes(node):
        if with_calls or not isinstance(child, ast.expr):
            _collect(source, child, for_types, with_calls, found)


def _absolute(source: Source, node: ast.ImportFrom) -> str:
    if node.level == 0:
        return node.module or ""
    parts = source.package.split(".")
    kept = parts[: len(parts) - node.level + 1]
    if not kept or node.level > len(parts):
        return ".."
    return ".".join([*kept, node.module] if node.module else kept)


def _called(node: ast.Call) -> str:
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
