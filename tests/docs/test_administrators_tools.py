"""docs/rocketmq-broker.md names each command of mqadmin that ends otherwise at this broker, and no other."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Final

from peers.suites.admin_commands import COMMANDS

ROOT: Final = Path(__file__).parents[2]
HEAD: Final = "| command | at this broker |"
WITH_ACCOUNTS: Final = {"updateAclConfig", "deleteAclConfig", "updateGlobalWhiteAddr"}
"""RocketMQ refuses them, too, as it runs in the suites: without accounts."""


def named() -> set[str]:
    """The commands in the first column of the page's table."""
    lines = (ROOT / "docs/rocketmq-broker.md").read_text().splitlines()
    found: set[str] = set()
    for line in lines[lines.index(HEAD) + 2 :]:
        if not line.startswith("|"):
            return found
        found.update(re.findall(r"`(\w+)`", line.split("|")[1]))
    raise AssertionError("the table has no end")


def excepted() -> set[str]:
    """The commands of all releases that end otherwise at this broker, as the suites expect it."""
    tables = tomllib.loads((ROOT / "peers/suites/exceptions.toml").read_text())
    return {command for release in COMMANDS for command in tables[f"mqadmin-{release}"]["ours"]}


def test_the_table_names_what_the_suites_expect() -> None:
    assert named() - WITH_ACCOUNTS == excepted()


def test_what_needs_accounts_is_named_and_is_run_by_the_suites() -> None:
    run = {line.split()[0].partition("#")[0] for lines in COMMANDS.values() for line in lines}
    assert named() >= WITH_ACCOUNTS
    assert run >= named()
