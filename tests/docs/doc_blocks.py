"""The code blocks of README and docs, and the shell lines in them.

Pages in Chinese have the blocks of those in English (``test_translations.py``), so they are not listed here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(path for path in (ROOT / "docs").glob("**/*.md") if path.parent.name != "zh"),
    *sorted((ROOT / "broker").glob("*.md")),
]
SHELL = ("sh", "console")


@dataclass(frozen=True)
class Block:
    """A fenced block: its page, the line of the fence, its language and its text."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """The shell lines, continued lines joined, without remarks; of a console, the lines behind the prompt."""
        text = self.text.replace("\\\n", " ")
        lines = text.splitlines()
        if self.language == "console":
            lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        found = [re.sub(r"\s{2,}#.*", "", line).strip() for line in lines]
        return [re.sub(r"\s+", " ", line) for line in found if line and not line.startswith("#")]


def blocks(*languages: str, page: str | None = None) -> Iterator[Block]:
    """The blocks in one of ``languages`` (any if none is named), of one page or of all."""
    for path in PAGES:
        if page is None or path == ROOT / page:
            text = path.read_text(encoding="utf-8")
            for match in re.finditer(r"^```([^\n]*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
                if not languages or match[1] in languages:
                    yield Block(path, text.count("\n", 0, match.start()) + 1, match[1], match[2])
