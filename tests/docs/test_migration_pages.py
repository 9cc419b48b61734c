"""The pages for users of other connectors: what they name of ours exists."""

from __future__ import annotations

import re

import pytest
from doc_blocks import ROOT, blocks

from metaq_spark.backends.metaq import options as metaq_options
from metaq_spark.backends.metaq.sink import SINK_COLUMNS as METAQ_SINK_COLUMNS
from metaq_spark.backends.rocketmq import options as rocketmq_options
from metaq_spark.columns.row_layout import COLUMN_TYPES

PAGES = {
    "coming-from-kafka.md": {option.name for option in metaq_options.OPTIONS} | {*COLUMN_TYPES, *METAQ_SINK_COLUMNS},
    "coming-from-rocketmq-spark.md": {option.name for option in rocketmq_options.OPTIONS},
}
TABLE = re.compile(r"^\| [^|]+ \| (here) \|.*\n\|[-|]+\n((?:\|.*\n)+)", re.MULTILINE)


def named(page: str) -> set[str]:
    """Return the names in the second column of each table whose heading is "here"."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    rows = [row for match in TABLE.finditer(text) for row in match[2].splitlines()]
    cells = [re.split(r"(?<!\\)\|", row)[2] for row in rows]
    return {name for cell in cells for name in re.findall(r"`([A-Za-z_]+)`", cell)}


@pytest.mark.parametrize("page", PAGES)
def test_options_and_columns_that_a_page_names_exist(page: str) -> None:
    columns = {"broker_name", "queue_id", "queue_offset", "born_timestamp", "store_timestamp", "value", "topic"}
    columns |= {"keys", "tags", "message_id", "properties", "key", "queue", "delay_level"}
    values = {"true", "false", "group", "exactly_once"}
    assert len(named(page)) > 10
    assert named(page) - PAGES[page] - columns - values == set()


def test_the_page_has_a_table_for_each_part_of_the_other_connector() -> None:
    text = (ROOT / "docs" / "coming-from-rocketmq-spark.md").read_text(encoding="utf-8")
    assert len(TABLE.findall(text)) == 3
    assert len(list(blocks("python", page="docs/coming-from-rocketmq-spark.md"))) == 1
