"""Each difference from RocketMQ that a recording shows is in a table of docs/rocketmq-broker.md or name-server.md."""

from __future__ import annotations

from pathlib import Path

import pytest
from recorded_differences import (
    OF_ADMINISTRATION,
    OF_FIELDS,
    OF_REQUESTS,
    OF_ROUTES,
    OF_SENDS_AND_PULLS,
    OF_THE_TEST,
    TESTED,
)

ROOT = Path(__file__).parents[2]
HEADS = {
    "rocketmq-broker": "| RocketMQ 4.9.7 | this broker | why |",
    "name-server": "| | RocketMQ 4.9.7 | here | why |",
}
"""A page, and the head of its tables that compare."""

OF_ALL_FIELDS = {name: set(reasons.values()) for name, reasons in OF_FIELDS.items()}
AT_NAME_SERVERS = {why for _, why in OF_ROUTES.values()} | OF_ALL_FIELDS.pop("ns_routes.jsonl")
AT_BROKERS = {
    *(why for reasons in (*OF_REQUESTS.values(), OF_ADMINISTRATION) for _, why in reasons.values()),
    *OF_SENDS_AND_PULLS.values(),
    *(why for reasons in OF_ALL_FIELDS.values() for why in reasons),
    *TESTED,
}


def rows(page: str) -> list[str]:
    """The rows of the tables that compare, from their first cell on."""
    found, inside = [], False
    for line in (ROOT / f"docs/{page}.md").read_text().splitlines():
        inside = line.startswith("|") and (inside or line == HEADS[page])
        if inside:
            found.append(line.removeprefix("| "))
    return found


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        *(("rocketmq-broker", reason) for reason in sorted(AT_BROKERS - OF_THE_TEST)),
        *(("name-server", reason) for reason in sorted(AT_NAME_SERVERS)),
    ],
)
def test_a_row_names_it(page: str, reason: str) -> None:
    (row,) = [row for row in rows(page) if row.startswith(reason)]
    assert all(cell.strip() for cell in row.split("|")[:2]), "what is otherwise, and what is here"


def test_nothing_is_excused_that_does_not_occur() -> None:
    assert OF_THE_TEST <= AT_BROKERS


@pytest.mark.parametrize("test", TESTED.values())
def test_a_row_that_no_recording_shows_has_a_test(test: str) -> None:
    path, _, name = test.partition("::")
    assert f"def {name}(" in (ROOT / "tests/broker" / path).read_text()
