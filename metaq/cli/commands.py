"""All commands, in the order in which ``metaq --help`` lists them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Final

from metaq.cli.command import COMMANDS, Command

MODULES: Final = (
    *("produce", "consume", "find", "inspect", "topic_settings", "lag", "reset", "dead_letters", "mirror", "stats"),
    *("bench", "doctor", "dashboard", "completion"),
)
"""Modules of ``metaq.cli`` with commands. They are small, and import the rest of ``metaq`` when a command runs."""


def all_commands() -> Mapping[str, Command]:
    """Return every command by its name."""
    modules = [import_module(f"metaq.cli.{name}").__name__ for name in MODULES]
    return {name: row for module in modules for name, row in COMMANDS.items() if row.run.__module__ == module}
