"""The table of clients in docs/rocketmq-broker.md is that of the last results of ``make test-rocketmq``."""

from __future__ import annotations

import json

import client_table
import pytest


def test_the_page_shows_the_results() -> None:
    page = client_table.PAGE.read_text()
    assert client_table.with_table(page, json.loads(client_table.RESULTS.read_text())) == page


def test_all_results_have_a_row_and_a_column() -> None:
    results = json.loads(client_table.RESULTS.read_text())
    assert set(results) <= set(client_table.CLIENTS)
    assert {feature for outcomes in results.values() for feature in outcomes} <= set(client_table.FEATURES)


def test_what_fails_is_named_below_the_table() -> None:
    lines = client_table.table({"go": {"send": "yes", "delay": "no: it is late"}}).splitlines()
    assert lines[6] == "| Go v2 | yes | - | - | - | - | - | - | no | - | - | - | - | - |"
    assert lines[-1] == "* Go v2, delay: it is late"


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="has no <!-- clients -->"):
        client_table.with_table("text", {})
