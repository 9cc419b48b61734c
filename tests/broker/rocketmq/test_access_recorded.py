"""Whom a real broker of 4.9.7 let through and whom it refused, with the same file of accounts and the same requests.

This broker refuses in the same words, or in words of its own behind the same exception's name; and it also looks at
what the real one does not: see ``STRICTER``.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Final, cast

from metaq_broker.rocketmq.session import Call
from metaq_broker.serve.accounts.account_list import parse_accounts
from recordings import ROCKETMQ, lines
from remoting_brokers import FakeSession, Front, access_to

from metaq.protocols.remoting.command import RemotingCommand

EXCEPTION: Final = "org.apache.rocketmq.acl.common.AclException: "
STRICTER: Final = frozenset({14, 30})
"""Committed offsets and ends of queues: the real broker tells them to every account."""

OWN_WORDS: Final = ("No default permission for ", "No permission for ")


def test_the_same_requests_are_refused(tmp_path: Path) -> None:
    front = Front(tmp_path)
    access = access_to(front, parse_accounts((ROCKETMQ / "accounts.yml").read_text()))
    counted: Counter[str] = Counter()
    for line in lines("accounts.jsonl"):
        command = RemotingCommand(line["code"], line["ext"], line["body"].encode(), 1)
        refusal = access.check(Call(command, cast("Any", FakeSession())))
        recorded = line["reply"]["remark"]
        if not recorded.startswith(EXCEPTION):
            assert refusal is None or line["code"] in STRICTER, f"{line['who']}: {command}"
            counted["stricter" if refusal else "let through"] += 1
            continue
        assert refusal is not None, f"{line['who']}: {command}"
        assert refusal.code == line["reply"]["code"] == 1
        if not recorded.removeprefix(EXCEPTION).startswith(OWN_WORDS):
            assert refusal.remark == recorded
            counted["same words"] += 1
        else:
            assert str(refusal.remark).startswith(EXCEPTION + "No permission for ")
            counted["own words"] += 1
    assert counted["stricter"] == 10
    assert min(counted["let through"], counted["own words"]) > 20
    assert counted["same words"] > 80
    assert counted.total() == 231
