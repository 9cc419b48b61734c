"""Where the recordings are: requests and replies, segment files and ZooKeeper nodes taken from real Java servers."""

from __future__ import annotations

from pathlib import Path

METAQ = Path(__file__).parent / "golden" / "metaq"
"""Recorded from MetaQ 1.4.6.2: one JSON line a step, bytes in hexadecimal."""
