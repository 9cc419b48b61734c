"""The operator's page names every metric, every action of ``ctl`` and every command of its socket, and no others."""

from __future__ import annotations

import re
from argparse import ArgumentParser
from pathlib import Path

import pytest
from metaq_broker.operate.control.answers import ANSWERS
from metaq_broker.operate.control.ctl import add_ctl_command

PAGE = (Path(__file__).parents[4] / "docs" / "administration.md").read_text()


def section(title: str) -> str:
    """Return the text from a heading to the next one."""
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#+ |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert found is not None, title
    return found[1]


def first_cells(text: str) -> list[str]:
    """Return what stands in backquotes in the first column of the tables of a section."""
    rows = (line.split("|")[1] for line in text.replace("\\|", "/").splitlines() if line.startswith("| `"))
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


def actions() -> set[str]:
    commands = ArgumentParser().add_subparsers()
    add_ctl_command(commands)
    listed = re.findall(r"^ {4}([a-z]+) ", commands.choices["ctl"].format_help(), re.MULTILINE)
    return set(listed)


def test_every_action_is_on_the_page() -> None:
    assert {cell.split()[0] for cell in first_cells(section("Operating a running broker"))} == actions()


def test_every_command_of_the_socket_is_on_the_page() -> None:
    assert set(first_cells(section("The control socket"))) == set(ANSWERS) == actions()


@pytest.mark.process
def test_every_metric_is_on_the_page(scraped_names: set[str]) -> None:
    assert set(first_cells(section("Metrics"))) - {"process_*"} == scraped_names
