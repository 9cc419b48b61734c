"""What real Java servers have said and stored: requests and replies, segment files and ZooKeeper nodes."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

METAQ = Path(__file__).parents[1] / "golden" / "metaq"
"""Recorded from MetaQ 1.4.6.2: one JSON line a step, bytes in hexadecimal."""

ROCKETMQ = METAQ.with_name("rocketmq")


@cache
def lines(name: str) -> list[dict[str, Any]]:
    """The lines of one file of RocketMQ's."""
    return [json.loads(line) for line in (ROCKETMQ / name).read_text("utf-8").splitlines()]


def content(value: dict[str, Any] | None) -> bytes:
    """The bytes that a recording shows as ``hex``, ``repeat`` or ``parts``."""
    if value is None or "omitted" in value:
        return b""
    if "parts" in value:
        return b"".join(map(content, value["parts"]))
    if "repeat" in value:
        return bytes.fromhex(value["repeat"]) * int(value["count"])
    return bytes.fromhex(value["hex"])
