"""Accounts as tools of 4.x ask for them: shown without secrets, and not changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import pytest
from metaq_broker.rocketmq.administration.account_requests import CHANGED_IN_FILE, AccountRequests
from metaq_broker.rocketmq.dispatcher import Dispatcher
from metaq_broker.rocketmq.registration import BrokerIdentity
from metaq_broker.rocketmq.session import Call, RemotingSession
from metaq_broker.serve.accounts.accounts_file import AccountsFile
from remoting_brokers import FakeSession
from stored import QuickFiles

from metaq.model import Address
from metaq.protocols.remoting.announcement import MetaQBroker
from metaq.protocols.remoting.command import RemotingCommand, request

HERE = Address("10.0.0.1", 10911)
CHANGES = {50: 209, 51: 210, 53: 211}
FILE = """\
globalWhiteRemoteAddresses: [10.10.103.*]
accounts:
  - accessKey: billing
    secretKey: not-to-be-seen
    whiteRemoteAddress: 10.1.2.3
    defaultGroupPerm: SUB
    topicPerms: [orders=PUB|SUB]
  - accessKey: administrator
    secretKey: not-to-be-seen-either
    admin: true
"""


def ask(file: Path | None, code: int) -> RemotingCommand:
    dispatcher, session = Dispatcher(), FakeSession()
    accounts = None if file is None else AccountsFile(QuickFiles(), file)
    AccountRequests(accounts, BrokerIdentity("C", "broker-a", HERE, MetaQBroker(0, HERE))).mount(dispatcher)
    dispatcher.carry_out(Call(request(code, {"accessKey": "billing"}), cast("RemotingSession", session)))
    (response,) = session.responses
    assert response is not None
    return response


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "accounts.yml"
    path.write_text(FILE)
    return path


def test_accounts_are_shown_without_their_secrets(file: Path) -> None:
    body = ask(file, 54).body
    assert b"not-to-be-seen" not in body
    found = json.loads(body)
    assert found["globalWhiteAddrs"] == ["10.10.103.*"]
    administrator, billing = found["plainAccessConfigs"]
    assert (administrator["accessKey"], administrator["admin"]) == ("administrator", True)
    assert (billing["topicPerms"], billing["defaultGroupPerm"]) == (["orders=PUB|SUB"], "SUB")
    assert (billing["defaultTopicPerm"], billing["whiteRemoteAddress"]) == ("DENY", "10.1.2.3")


def test_the_version_is_the_time_of_the_file(file: Path) -> None:
    ext = ask(file, 52).ext
    assert (ext["brokerName"], ext["clusterName"], ext["brokerAddr"]) == ("broker-a", "C", str(HERE))
    version = json.loads(ext["version"])
    assert version["timestamp"] == file.stat().st_mtime_ns // 1_000_000
    assert json.loads(ext["allAclFileVersion"]) == {str(file): version}


@pytest.mark.parametrize("code", CHANGES)
def test_accounts_are_changed_in_their_file_only(file: Path, code: int) -> None:
    response = ask(file, code)
    assert (response.code, response.remark) == (CHANGES[code], CHANGED_IN_FILE)
    assert ask(None, code).remark == "this broker has no accounts: aclEnable is false"


def test_a_broker_without_accounts_shows_none() -> None:
    assert json.loads(ask(None, 54).body) == {"globalWhiteAddrs": [], "plainAccessConfigs": []}
    assert ask(None, 52).ext["allAclFileVersion"] == "{}"
