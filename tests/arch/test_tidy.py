"""Size of functions, module docstrings, names and leftovers: what a reviewer should not have to look for."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest
from sources import PRODUCT, ROOT, Source, imports, parse, sources

PROSE_COLUMNS_MAX = 120
GENERATED_PAGES = ("docs/figures.md", "docs/figures-peers.md")
FUNCTION_LINES_MAX = 60

LEFTOVERS = re.compile(
    r"\b(TODO|FIXME|XXX|HACK|NotImplementedError)\b"  # unfinished
    r"|\b(breakpoint\(|pdb\b)"  # debugging
    r"|\bmypy: ignore-errors\b"  # a file without types; name the kinds of errors that are none
    r"|(?<![\w.])/(?:tmp|work|farm|root|home/\w+)/\w"  # some machine's folders
)
VAGUE_NAMES = re.compile(r"(?:^|_)(?:utils?|helpers?|common|misc|stuff)(?:_|$)")


def long_ones(source: Source) -> Iterator[str]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            size = (node.end_lineno or node.lineno) - node.lineno + 1
            if size > FUNCTION_LINES_MAX:
                yield f"{source.path}:{node.lineno} {node.name} has {size} lines"


def undocumented(source: Source) -> Iterator[str]:
    """A module with code says in its docstring what it is for."""
    if source.tree.body and not ast.get_docstring(source.tree):
        yield f"{source.path} has no docstring"


def leftovers(source: Source) -> Iterator[str]:
    for number, line in enumerate(source.text.splitlines(), 1):
        if LEFTOVERS.search(line):
            yield f"{source.path}:{number} {line.strip()[:100]}"


def vague(source: Source) -> Iterator[str]:
    for part in source.path.removesuffix(".py").split("/"):
        if VAGUE_NAMES.search(part):
            yield f"{source.path}: {part!r} says nothing about what is in it"


CHECKS = (long_ones, undocumented, leftovers, vague)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("folder", PRODUCT)
def test_product(folder: str, check: object) -> None:
    found = sources(folder)
    assert found, "nothing to look at"
    assert [row for source in found for row in check(source)] == []  # type: ignore[operator]


def test_tests_and_benchmarks_are_no_novels_either() -> None:
    assert [row for source in sources("tests", "benchmarks", "peers") for row in long_ones(source)] == []


def test_test_files_have_names_of_their_own() -> None:
    """pytest imports test files by their base name: two of one name would hide each other."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))


def test_a_test_file_can_be_run_alone() -> None:
    """What it imports of the tests is in its own folder, or where pytest always looks."""
    everywhere = (ROOT / "tests", ROOT / "tests" / "support")
    homes = {path.stem: path.parent for path in (ROOT / "tests").rglob("*.py") if path.name != "conftest.py"}
    lost = [
        f"{source.path}:{line} {name}"
        for source in sources("tests")
        for name, line in imports(source)
        if (home := homes.get(name.split(".")[0])) is not None
        if home not in (*everywhere, (ROOT / source.path).parent)
    ]
    assert lost == []


def test_every_test_checks_something() -> None:
    idle = [
        f"{source.path}:{node.lineno} {node.name}"
        for source in sources("tests")
        for node in ast.walk(source.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
        if not any(isinstance(inner, ast.Assert | ast.With | ast.AsyncWith | ast.Call) for inner in ast.walk(node))
    ]
    assert idle == []


class TestTheChecksThemselves:
    """Each check finds what it is for."""

    @pytest.mark.parametrize(
        ("check", "path", "text"),
        [
            (long_ones, "metaq/x.py", "def f():\n" + "    x = 1\n" * 60),
            (undocumented, "metaq/x.py", "x = 1\n"),
            (leftovers, "metaq/x.py", "x = 1  # TO" + "DO: more"),
            (leftovers, "metaq/x.py", "open('/t" + "mp/x')"),
            (leftovers, "metaq/x.py", "raise NotImplemented" + "Error"),
            (leftovers, "metaq/x.py", "# mypy: ignore" + "-errors"),
            (vague, "metaq/utils.py", ""),
            (vague, "metaq/common/x.py", ""),
            (vague, "metaq/log_helper.py", ""),
        ],
    )
    def test_finds(self, check: object, path: str, text: str) -> None:
        assert list(check(parse(path, text)))  # type: ignore[operator]

    def test_leaves_the_rest_alone(self) -> None:
        text = '"""Doc: see /var/t' + 'mp/x and a_todo."""\ndef f(): ...\nclass C: ...\ndef g():\n    """Doc."""\n'
        text += "    x = 1\n" * 58
        for check in CHECKS:
            assert list(check(parse("metaq/manual_clock.py", text))) == []
            assert list(check(parse("metaq/empty/__init__.py", ""))) == []


def long_prose(page: str) -> Iterator[int]:
    """Numbers of lines that are too long and neither of a table nor of a code block."""
    in_code = False
    for number, line in enumerate(page.splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif not in_code and not line.startswith("|") and len(line) > PROSE_COLUMNS_MAX:
            yield number


def test_pages_are_wrapped() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    names = {page.relative_to(ROOT).as_posix(): page for page in pages}
    assert {"README.md", "docs/connector.md"} <= names.keys()
    texts = {name: page.read_text() for name, page in names.items() if name not in GENERATED_PAGES}
    assert [f"{name}:{number}" for name, text in texts.items() for number in long_prose(text)] == []


def test_long_prose_is_found() -> None:
    word = "x" * (PROSE_COLUMNS_MAX + 1)
    assert list(long_prose(f"{word}\n| {word}\n```\n{word}\n```\n{word}")) == [1, 6]


def malformed_tables(page: str) -> Iterator[int]:
    """Numbers of the first lines of tables that are shown as text: without a line of dashes, or a blank line before."""
    in_code, lines = False, ["", *page.splitlines(), ""]
    for number, line in enumerate(lines):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        before = lines[number - 1]
        if (
            not in_code
            and line.startswith("|")
            and not before.startswith("|")
            and (before.strip() or not lines[number + 1].startswith("|---"))
            and not before.startswith("<!--")
        ):
            yield number


def test_tables_are_tables() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "broker").glob("*.md")]
    texts = {page.relative_to(ROOT).as_posix(): page.read_text() for page in pages}
    assert [f"{name}:{number}" for name, text in texts.items() for number in malformed_tables(text)] == []


def test_malformed_tables_are_found() -> None:
    assert list(malformed_tables("| a |\n|---|\n| b |\n\n```\n| a |\n```\n\n| a |\n| b |\nx\n| a |\n|---|")) == [9, 12]
