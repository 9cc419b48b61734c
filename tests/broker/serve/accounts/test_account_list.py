"""Accounts: what a file may say, and what an account may do then."""

from __future__ import annotations

import pytest
from metaq_broker.serve.accounts.account_list import (
    ANY,
    Account,
    AccountsInvalid,
    AddressPattern,
    Permission,
    is_trusted_by,
    parse_accounts,
)

PUB, SUB, DENY = Permission.PUB, Permission.SUB, Permission.DENY

FILE = """\
# as RocketMQ's
globalWhiteRemoteAddresses:
- 10.10.103.*
- 192.168.0.1
accounts:
- accessKey: RocketMQ
  secretKey: 12345678
  whiteRemoteAddress:
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - topicA=DENY
  - topicB=PUB|SUB
  - topicC=SUB
  groupPerms:
  # the group should convert to retry topic
  - groupA=DENY
  - groupB=PUB|SUB
- accessKey: boss
  secretKey: 'secret: 1'
  whiteRemoteAddress: 10.1.*.*, 10.2.{1,5}.3-9
  admin: true
"""


def test_the_file_of_rocketmq() -> None:
    found = parse_accounts(FILE)
    account = found.accounts["RocketMQ"]
    assert account.secret_key == "12345678"
    assert account.topics == {"topicA": DENY, "topicB": PUB | SUB, "topicC": SUB}
    assert [account.may_use_topic(name, PUB) for name in ("topicA", "topicB", "topicC", "other")] == [
        False,
        True,
        False,
        False,
    ]
    assert [account.may_use_topic(name, SUB) for name in ("topicA", "topicB", "topicC")] == [False, True, True]
    assert [account.may_use_topic(name, ANY) for name in ("topicA", "topicC", "other")] == [False, True, False]
    assert [account.may_use_group(name) for name in ("groupA", "groupB", "other")] == [False, True, True]
    boss = found.accounts["boss"]
    assert boss.secret_key == "secret: 1"
    assert boss.is_admin
    assert boss.may_use_topic("whatever", PUB)
    assert boss.may_use_group("whatever")
    assert "secret: 1" not in repr(found)
    assert found.is_trusted("10.10.103.7")
    assert found.is_trusted("::ffff:10.10.103.7")
    assert not found.is_trusted("10.10.104.7")
    assert not found.is_trusted("nowhere")
    trusted = ["10.1.200.3", "10.2.5.9", "10.2.2.9", "10.2.5.10", "127.0.0.1"]
    assert [is_trusted_by(boss, each) for each in trusted] == [True, True, False, False, False]
    assert not is_trusted_by(account, "10.1.200.3")


def test_an_administrator_with_names_has_those_permissions() -> None:
    account = Account("a", "secret", is_admin=True, topics={"T": SUB}, default_topic=PUB)
    assert not account.may_use_topic("T", PUB)
    assert account.may_use_topic("U", PUB)
    assert not account.may_use_group("g")


def test_deny_goes_before_what_stands_beside_it() -> None:
    account = Account("a", "secret", topics={"T": DENY | PUB})
    assert not account.may_use_topic("T", PUB)
    assert not account.may_use_topic("T", ANY)


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("*", ["1.2.3.4", "::1"], []),
        ("*.*.*.*", ["1.2.3.4"], []),
        ("10.0.0.0/8", ["10.255.0.1"], ["11.0.0.1"]),
        ("::1", ["::1"], ["::2", "0.0.0.1"]),
        ("10.0-3.*.7", ["10.2.9.7"], ["10.4.9.7", "10.2.9.8"]),
    ],
)
def test_addresses(pattern: str, inside: list[str], outside: list[str]) -> None:
    from ipaddress import ip_address

    found = AddressPattern(pattern)
    assert all(found.matches(ip_address(each)) for each in inside)
    assert not any(found.matches(ip_address(each)) for each in outside)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("- a", "the file: expected KEY: VALUE"),
        ("account: []", "the file: unknown key 'account'"),
        ("accounts: all", "accounts: expected a list"),
        ("accounts:\n- accessKey: a", "account 'a': its secretKey has fewer than 7 characters"),
        ("accounts:\n- secretKey: 12345678", "an account has no accessKey"),
        ("accounts:\n- accessKey: a\n  secretKey: 12345678\n  perm: PUB", "account: unknown key 'perm'"),
        ("accounts:\n- accessKey: a\n  secretKey: 12345678\n  admin: yes", "admin 'yes'; expected true or false"),
        ("accounts:\n- accessKey: a\n  secretKey: 12345678\n  defaultTopicPerm: PUP", "permission 'PUP'; expected"),
        ("accounts:\n- accessKey: a\n  secretKey: 12345678\n  topicPerms: [T]", "expected NAME=PERMISSION"),
        ("accounts:\n- accessKey: a\n  secretKey: 12345678\n  topicPerms: T=PUB", "topicPerms is not a list of texts"),
        (2 * "- x" + "", "the file: expected KEY"),
        (
            "accounts:\n- accessKey: a\n  secretKey: 12345678\n- accessKey: a\n  secretKey: 12345679",
            "account 'a' is there twice",
        ),
        ("globalWhiteRemoteAddresses:\n- 10.1", "address '10.1'; expected an address such as"),
        ("globalWhiteRemoteAddresses:\n- 10.1.x.3", "address '10.1.x.3'; expected an address such as"),
    ],
)
def test_a_wrong_file_names_what_is_wrong_and_no_secret(text: str, reason: str) -> None:
    with pytest.raises(AccountsInvalid) as caught:
        parse_accounts(text)
    assert reason in str(caught.value)
    assert "1234567" not in str(caught.value)
