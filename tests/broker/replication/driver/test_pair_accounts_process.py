"""MetaQ's clients need accounts (``aclMetaqPort``) at both members of a pair, whichever is elected, and when."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from fix_broker import StartBroker, WireClient
from fix_zookeeper import ZooKeeperRoot
from metaq_broker.replication.driver.wire import encode_message
from metaq_broker.replication.pair.messages import PairHello
from metaq_broker.replication.pair.record import PairMemberEntry, PairRecord
from pair_processes import PairProcesses, put

from metaq.protocols.text.encode import encode_member_line

pytestmark = [pytest.mark.process, pytest.mark.slow]

ACCOUNTS = """\
globalWhiteRemoteAddresses:
- 127.0.0.1
accounts:
- accessKey: alice
  secretKey: secret-1
"""


class Stranger(WireClient):
    """A client at an address that no account has."""

    def __post_init__(self) -> None:
        at = self.address.host, self.address.port
        self.socket = socket.create_connection(at, 20, source_address=("127.0.0.2", 0))
        self.closed_by_broker = False

    def is_refused(self, request: bytes) -> bool:
        code, text = self.result(request)
        return code == 403 and "(aclFile)" in text


@pytest.fixture
def pair(tmp_path: Path, zookeeper: ZooKeeperRoot, start_broker: StartBroker) -> PairProcesses:
    (tmp_path / "accounts.yml").write_text(ACCOUNTS)
    pair = PairProcesses(tmp_path, zookeeper, start_broker)
    keys = f"aclEnable=true\naclFile={tmp_path / 'accounts.yml'}\naclMetaqPort=true\nvipPort=false\n"
    pair.extra += f"[rocketmq]\nenabled=true\nport=0\n{keys}"
    pair.start()
    return pair


def test_nobody_without_an_account_looks_at_a_slave_or_leads_it(pair: PairProcesses) -> None:
    slave = pair.other(pair.master)
    stranger = Stranger(slave.address)
    assert stranger.is_refused(b"stats replication 1\r\n")
    record = PairRecord(99, "x", frozenset("x"), {"x": PairMemberEntry("127.0.0.2:1", "1")})
    hello = b"".join(encode_message(PairHello(99, "x", record, 99)))
    assert stranger.is_refused(encode_member_line(len(hello), 2) + hello)
    stranger.close()
    put(pair, range(10))
    assert slave.role == "in_sync_slave"


def test_a_connection_from_before_an_election_needs_an_account_after_it(pair: PairProcesses) -> None:
    master = pair.wait_in_sync()
    slave = pair.other(master)
    stranger = Stranger(slave.address)
    assert stranger.result(b"version 1\r\n")[0] == 200
    master.kill()
    pair.wait_master(slave)
    assert stranger.is_refused(b"put t 0 1 0 2\r\nx")
    assert stranger.is_refused(b"get t g 0 0 100 3\r\n")
    stranger.close()
