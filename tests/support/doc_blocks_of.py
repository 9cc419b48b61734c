"""The shell line of a page that begins with some words."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def shell_line(page: str, start: str) -> str:
    """Return the only line of the page's shell blocks that begins with ``start``."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    [found] = [line for block in blocks for line in block.splitlines() if line.startswith(start)]
    return found
