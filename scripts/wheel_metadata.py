"""The description in the wheel's metadata: README.md with links that work outside of the repository.

A link to a file of the repository becomes an absolute one below ``Source`` of ``[project.urls]``; as long as
pyproject.toml names no such address, it becomes plain text.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(?<!!)\[((?:[^\]\[]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def described(text: str, source: str | None) -> str:
    """Return ``text`` with relative links below the address ``source``, or without relative links."""

    def link(match: re.Match[str]) -> str:
        words, target = match[1], match[2]
        if re.match(r"[a-z]+:", target):
            return match[0]
        return words if source is None or target.startswith("#") else f"[{words}]({source.rstrip('/')}/{target})"

    return LINK.sub(link, text)


class Description(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        source = metadata.get("urls", {}).get("Source")
        metadata["readme"] = {"content-type": "text/markdown", "text": described(text, source)}
