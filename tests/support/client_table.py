"""Writes the table of clients and features in docs/rocketmq-broker.md, made from ``results.json``.

    python tests/support/client_table.py

The tests in ``tests/rocketmq_broker`` write it; a test of the docs fails if the page shows another table.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
RESULTS: Final = ROOT / "tests" / "rocketmq_broker" / "results.json"
PAGE: Final = ROOT / "docs" / "rocketmq-broker.md"
BEGIN, END = "<!-- clients -->\n", "<!-- end of clients -->\n"

CLIENTS: Final = {
    "java-4.9.7": "Java 4.9.7",
    "java-5.5.0": "Java 5.5.0",
    "python": "PyPI `rocketmq` 0.4.4",
    "javascript": "npm `ali-ons` 3.12.0",
    "go": "Go v2",
    "rust": "Rust `rocketmq-client-rust` 1.0.0",
}
FEATURES: Final = {
    "send": "send, push",
    "batch": "batch",
    "tags": "tags",
    "sql": "SQL92",
    "groups": "join, leave",
    "restart": "restart",
    "ordered": "ordered",
    "delay": "delay",
    "retry": "retry, dead letter",
    "transactions": "transactions",
    "lite": "lite pull",
    "request": "request, reply",
    "mqadmin": "`mqadmin`",
}
NOT_THERE: Final = "-"


def table(results: Mapping[str, Mapping[str, str]]) -> str:
    """The table, and below it a line for each feature that fails."""
    lines = [f"| client | {' | '.join(FEATURES.values())} |", "|---" * (len(FEATURES) + 1) + "|"]
    failures: list[str] = []
    for client, title in CLIENTS.items():
        outcomes = results.get(client, {})
        cells = [outcomes.get(feature, NOT_THERE) for feature in FEATURES]
        lines.append(f"| {title} | {' | '.join(cell.partition(':')[0] for cell in cells)} |")
        for feature, outcome in zip(FEATURES.values(), cells, strict=True):
            if outcome.startswith("no"):
                failures.append(f"* {title}, {feature}: {outcome.removeprefix('no: ')}")
    return "\n".join([*lines, *([""] if failures else []), *failures]) + "\n"


def with_table(page: str, results: Mapping[str, Mapping[str, str]]) -> str:
    """The page with the table between its marks."""
    before, found, rest = page.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not (found and ended):
        raise ValueError(f"the page has no {BEGIN.strip()} with {END.strip()} behind it")
    return f"{before}{found}\n{table(results)}\n{ended}{after}"


def main() -> int:
    PAGE.write_text(with_table(PAGE.read_text(), json.loads(RESULTS.read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
