"""Recordings of real RocketMQ, read from tests/golden/rocketmq."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "rocketmq"


@cache
def lines(name: str) -> list[dict[str, Any]]:
    """The lines of one file."""
    return [json.loads(line) for line in (GOLDEN / name).read_text("utf-8").splitlines()]


def content(value: dict[str, Any] | None) -> bytes:
    """The bytes that a recording shows as ``hex``, ``repeat`` or ``parts``."""
    if value is None or "omitted" in value:
        return b""
    if "parts" in value:
        return b"".join(map(content, value["parts"]))
    if "repeat" in value:
        return bytes.fromhex(value["repeat"]) * int(value["count"])
    return bytes.fromhex(value["hex"])
