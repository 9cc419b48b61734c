"""Nothing in the repository reads what lies outside of it: a clone with nothing beside it passes its tests."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from sources import Source, parse, sources

FOLDERS = ("metaq", "metaq_spark", "broker", "console", "jobs", "tests", "benchmarks", "faults", "peers")


def steps_up(node: ast.AST, names: dict[str, int]) -> int | None:
    """How many folders ``node`` lies above the file that holds it; None if it is no path made from ``__file__``."""
    match node:
        case ast.Name(id="__file__"):
            return 0
        case ast.Name(id=name):
            return names.get(name)
        case ast.Call(func=ast.Name(id="Path"), args=[first]):
            return steps_up(first, names)
        case ast.Call(func=ast.Attribute(value=value, attr="resolve" | "absolute")):
            return steps_up(value, names)
        case ast.Attribute(value=value, attr="parent"):
            above = steps_up(value, names)
            return None if above is None else above + 1
        case ast.Subscript(value=ast.Attribute(value=value, attr="parents"), slice=ast.Constant(value=int(index))):
            above = steps_up(value, names)
            return None if above is None else above + index + 1
    return None


def paths_outside(source: Source) -> Iterator[str]:
    """Places in a file that name a folder above the repository."""
    if "__file__" not in source.text and "ROOT" not in source.text:
        return
    root = len(source.path.split("/"))
    names = {"ROOT": root}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            above = steps_up(node.value, names)
            if above is not None:
                names[node.targets[0].id] = above
    for node in ast.walk(source.tree):
        above = steps_up(node, names)
        if above is not None and above > root:
            yield f"{source.path}:{getattr(node, 'lineno', '?')} leaves the repository"


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_path_leaves_the_repository(folder: str) -> None:
    found = [line for source in sources(folder) for line in paths_outside(source)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "leaves"),
    [
        ("here = Path(__file__).parents[2] / 'golden'", False),
        ("here = Path(__file__).resolve().parent.parent.parent", False),
        ("here = Path(__file__).parents[2].parent / 'recordings'", True),
        ("here = Path(__file__).resolve().parents[3]", True),
        ("top = Path(__file__).parents[2]\nbeside = top.parent / 'recordings'", True),
        ("from sources import ROOT\nbeside = ROOT.parent", True),
    ],
)
def test_what_counts_as_leaving(text: str, leaves: bool) -> None:
    assert bool(list(paths_outside(parse("tests/metaq/test_wire.py", text)))) is leaves
