"""The site of the documentation: every page is in it, and links lead to pages of the site."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from doc_blocks import ROOT
from pages import page_names, rewritten, write_pages

NAMES = {"README.md": "index.md", "docs/client.md": "client.md", "docs/zh/rocketmq.md": "zh/rocketmq.md"}


@pytest.mark.parametrize(
    ("page", "text", "expected"),
    [
        ("README.md", "[a](docs/client.md)", "[a](client.md)"),
        ("README.md", "[`a`](docs/client.md#tls), b", "[`a`](client.md#tls), b"),
        ("docs/client.md", "[a](../README.md#use-it)", "[a](index.md#use-it)"),
        ("docs/zh/rocketmq.md", "[a](../client.md)", "[a](../client.md)"),
        ("docs/client.md", "[a](../jobs/demo.py)", "a"),
        ("docs/client.md", "[a](https://example.org/b.md) [c](#d)", "[a](https://example.org/b.md) [c](#d)"),
        ("docs/client.md", "```sh\n[a](../jobs/demo.py)\n```", "```sh\n[a](../jobs/demo.py)\n```"),
        ("docs/client.md", "```bytes record\n00\n```", "```bytes\n00\n```"),
    ],
)
def test_links_of_a_page(page: str, text: str, expected: str) -> None:
    assert rewritten(text, page, NAMES) == expected


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r"^ +- ([\w/.-]+\.md)$", (ROOT / "site" / "mkdocs.yml").read_text(), re.MULTILINE))
    pages = {name for name in page_names(ROOT).values() if not re.match(r"adr/\d", name)}
    assert listed == pages


def test_links_lead_to_files_of_the_site(tmp_path: Path) -> None:
    write_pages(ROOT, tmp_path)
    missing = []
    for page in tmp_path.rglob("*.md"):
        text = re.sub(r"(?ms)^```.*?^```$|`[^`\n]*`", "", page.read_text(encoding="utf-8"))
        for target in re.findall(r"\]\(([^)\s#]+)", text):
            if not re.match(r"[a-z]+:", target) and not (page.parent / target).exists():
                missing.append(f"{page.relative_to(tmp_path)}: {target}")
    assert missing == []


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="needs mkdocs-material: make site")
    write_pages(ROOT, tmp_path / "pages")
    text = (ROOT / "site" / "mkdocs.yml").read_text().replace("../build/site-pages", str(tmp_path / "pages"))
    (tmp_path / "mkdocs.yml").write_text(text.replace("../build/site", str(tmp_path / "site")))
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "site")}
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "-f", str(tmp_path / "mkdocs.yml")]
    outcome = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert (outcome.returncode, "WARNING" in outcome.stderr) == (0, False), outcome.stderr
