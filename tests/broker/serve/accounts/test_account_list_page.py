"""docs/rocketmq-broker.md: its file of accounts is one, and its limits are those of the code."""

from __future__ import annotations

from pathlib import Path

from metaq_broker.log.engine.topics import QUEUES_MAX, TOPICS_MAX
from metaq_broker.log.state.state_table import ENTRY_BYTES, OWN_SHARE, STATE_BYTES_MAX
from metaq_broker.rocketmq.groups.limits import GROUP_BYTES_MAX, NAME_BYTES_MAX
from metaq_broker.serve.accounts.account_list import Permission, is_trusted_by, parse_accounts

PAGE = (Path(__file__).resolve().parents[4] / "docs" / "rocketmq-broker.md").read_text("utf-8")


def test_the_file_of_accounts_on_the_page() -> None:
    text = PAGE.partition("## Access\n")[2].partition("```text\n")[2].partition("```")[0]
    found = parse_accounts(text)
    billing, administrator = found.accounts["billing"], found.accounts["administrator"]
    assert found.is_trusted("10.10.103.9")
    assert is_trusted_by(billing, "10.1.2.3")
    assert billing.secret_key == "at-least-7-characters"
    assert billing.topics == {"orders": Permission.SUB, "invoices": Permission.PUB | Permission.SUB}
    assert billing.may_use_group("billing")
    assert not billing.may_use_group("others")
    assert administrator.may_use_topic("orders", Permission.PUB)


def test_the_fixed_limits_on_the_page() -> None:
    rows = {row.split("|")[1].strip(): row.split("|")[2].strip() for row in PAGE.splitlines() if row.startswith("| ")}
    names = "bytes in the name of a group of producers, a client, a topic of a committed offset"
    assert rows[names] == f"{NAME_BYTES_MAX}"
    assert rows["bytes in the name of a group of consumers"] == f"{GROUP_BYTES_MAX}"
    assert rows["topics that clients make; queues of one topic"] == f"{TOPICS_MAX:,}; {QUEUES_MAX:,}"
    state = f"settings and offsets of all together, each with {ENTRY_BYTES} bytes more than its name and value"
    assert rows[state] == f"{(STATE_BYTES_MAX - STATE_BYTES_MAX // OWN_SHARE) >> 20} MiB"
