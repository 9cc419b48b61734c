"""Each difference from RocketMQ that a recording shows is in a table of docs/rocketmq-broker.md."""

from __future__ import annotations

from pathlib import Path

import pytest
from recorded_differences import OF_ADMINISTRATION, OF_REQUESTS, OF_THE_TEST

PAGE = Path(__file__).parents[2] / "docs/rocketmq-broker.md"
REASONS = {why for reasons in (*OF_REQUESTS.values(), OF_ADMINISTRATION) for _, why in reasons.values()}


def rows() -> list[str]:
    """The rows of the tables that compare, from their first cell on."""
    found, inside = [], False
    for line in PAGE.read_text().splitlines():
        inside = line.startswith("|") and (inside or line == "| RocketMQ 4.9.7 | this broker | why |")
        if inside:
            found.append(line.removeprefix("| "))
    return found


@pytest.mark.parametrize("reason", sorted(REASONS - OF_THE_TEST))
def test_a_row_names_it(reason: str) -> None:
    assert len([row for row in rows() if row.startswith(reason)]) == 1


def test_nothing_is_excused_that_does_not_occur() -> None:
    assert OF_THE_TEST <= REASONS
