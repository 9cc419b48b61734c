"""How a command of mqadmin ended, read from what it printed."""

from __future__ import annotations

import string

import pytest

from peers.suites.admin_commands import COMMANDS
from peers.suites.admin_sweep import WORKED, require_all, verdict_of


@pytest.mark.parametrize(
    ("state", "said", "verdict"),
    [
        ("ended", "create topic to 127.0.0.1:1 success.\n", WORKED),
        ("ended", "", WORKED),
        ("ended", "18:09:56.245 WARN  Thread client - heartbeat failed\n1\n", WORKED),
        ("ended", "a.SubCommandException: x\nCaused by: b.RemotingTimeoutException: y", "RemotingTimeoutException"),
        ("running", "#Cluster Name\n", f"{WORKED}, went on"),
        ("ended", "MQBrokerException: CODE: 17  DESC: No topic route info", "17"),
        ("ended", "org.apache.rocketmq.tools.command.SubCommandException: command failed", "SubCommandException"),
        ("ended", "usage: mqadmin updateTopic -b <arg>", "usage: mqadmin"),
    ],
)
def test_a_verdict_is_what_the_command_complained_of(state: str, said: str, verdict: str) -> None:
    assert verdict_of(state, said) == verdict


@pytest.mark.parametrize("version", COMMANDS)
def test_each_line_has_a_name_of_its_own_and_known_gaps(version: str) -> None:
    names = [line.split()[0] for line in COMMANDS[version]]
    assert len(set(names)) == len(names)
    known = {"broker", "cluster", "topic", "group", "place", "id", "queue", "offset", "folder", "name_server"}
    known |= {"topics", "groups"}
    gaps = {field for line in COMMANDS[version] for _, field, _, _ in string.Formatter().parse(line) if field}
    assert gaps <= known


@pytest.mark.parametrize("version", COMMANDS)
def test_a_command_that_the_sweep_lacks_is_an_error(version: str) -> None:
    names = {line.split()[0].partition("#")[0] for line in COMMANDS[version]}
    require_all(version, names)
    with pytest.raises(ValueError, match=r"not in the sweep: \['newCommand'\]; not in the tool: \['topicList'\]"):
        require_all(version, names - {"topicList"} | {"newCommand"})
