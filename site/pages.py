"""Puts the pages of the documentation side by side for ``mkdocs``: docs/, README.md, CHANGELOG.md and CONTRIBUTING.md.

    python site/pages.py FOLDER

README.md becomes the first page, ``index.md``. Links between pages follow; links to files that are no pages (programs,
folders) become plain text, because the site does not have them.
"""

from __future__ import annotations

import re
import shutil
import sys
from os.path import normpath, relpath
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
RENAMED: Final = {"README.md": "index.md", "README.zh-CN.md": "zh/index.md"}
BESIDE: Final = ("README.md", "README.zh-CN.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
LINK: Final = re.compile(r"(?<!!)\[((?:[^\]\[]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
FENCED: Final = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)


def slug(heading: str, separator: str) -> str:
    """Return the anchor of a heading as GitHub makes it: the links in the pages have that form."""
    kept = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return kept.replace(" ", separator)


def page_names(root: Path) -> dict[str, str]:
    """Return each page of the repository, by its path there: its path in the site."""
    found = {name: RENAMED.get(name, name) for name in BESIDE if (root / name).exists()}
    for path in sorted((root / "docs").rglob("*.md")):
        name = path.relative_to(root).as_posix()
        found[name] = name.removeprefix("docs/")
    return found


def rewritten(text: str, page: str, names: dict[str, str]) -> str:
    """Return the text of ``page`` with links that lead to places of the site."""
    here = names[page]

    def link(match: re.Match[str]) -> str:
        words, target = match[1], match[2]
        if re.match(r"[a-z]+:", target) or target.startswith("#"):
            return match[0]
        path, _, anchor = target.partition("#")
        there = names.get(normpath(Path(page).parent / path))
        if there is None:
            is_picture = normpath(Path(page).parent / path).startswith("docs/") and not path.endswith("/")
            return match[0] if is_picture and Path(path).suffix in {".png", ".svg", ".json"} else words
        place = relpath(there, Path(here).parent)
        return f"[{words}]({place}{'#' + anchor if anchor else ''})"

    parts = FENCED.split(text)
    return "".join(one_language(part) if index % 2 else LINK.sub(link, part) for index, part in enumerate(parts))


def one_language(block: str) -> str:
    """Return a fenced block whose first line has its language alone; the site's generator knows no second word."""
    return re.sub(r"\A```(\w+)[^\n]*", r"```\1", block)


def write_pages(root: Path, folder: Path) -> None:
    """Write all pages, and the pictures of docs/, to ``folder``, which is made anew."""
    shutil.rmtree(folder, ignore_errors=True)
    names = page_names(root)
    for page, name in names.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(rewritten((root / page).read_text(encoding="utf-8"), page, names), encoding="utf-8")
    for path in sorted((root / "docs").rglob("*")):
        if path.is_file() and path.suffix != ".md":
            place = folder / path.relative_to(root / "docs")
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place)


if __name__ == "__main__":
    write_pages(ROOT, Path(sys.argv[1]))
