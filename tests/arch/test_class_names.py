"""A class name stands for one thing, as docs/glossary.md says."""

from __future__ import annotations

import ast
from collections import defaultdict

from sources import Source, parse, sources

FOLDERS = ("metaq", "metaq_spark", "broker/metaq_broker", "console/metaq_console")

BOTH_SYSTEMS = {
    "Access",
    "BatchWriter",
    "Moved",
    "Refused",
    "Session",
    "SessionPool",
    "SinkOptions",
    "SourceOptions",
}
"""The same part of MetaQ's side and of RocketMQ's."""

BOTH_SIDES = {"Clock", "ManualClock"}
"""Time for the client, which waits in threads, and for the broker, which has an event loop and the time of day."""

IMPLEMENTED = {"Cluster", "LagLookup"}
"""A protocol, and the classes that implement it."""

NARROW = {"Timer"}
"""The part of the event loop's timer that two folders of the broker need, which do not import each other."""


def repeated(files: tuple[Source, ...]) -> dict[str, list[str]]:
    """Return public class names that stand in several files, with these."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for source in files:
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(source.path)
    return {name: paths for name, paths in found.items() if len(paths) > 1}


def test_a_class_name_stands_for_one_thing() -> None:
    found = repeated(sources(*FOLDERS))
    allowed = BOTH_SYSTEMS | BOTH_SIDES | IMPLEMENTED | NARROW
    assert {name: found[name] for name in found.keys() - allowed} == {}
    assert allowed - found.keys() == set(), "the list allows nothing"


def test_classes_of_both_systems_lie_in_folders_of_both() -> None:
    found = repeated(sources(*FOLDERS))
    for name in BOTH_SYSTEMS:
        assert sorted("rocketmq" in path for path in found[name]) == [False, True], name


def test_a_repeated_name_is_found() -> None:
    files = (parse("a.py", "class One: ...\nclass _Two: ..."), parse("b.py", "class One: ...\nclass _Two: ..."))
    assert repeated(files) == {"One": ["a.py", "b.py"]}
