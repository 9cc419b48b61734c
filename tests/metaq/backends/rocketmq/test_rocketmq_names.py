"""Names of topics and groups with a namespace, and back."""

from __future__ import annotations

import pytest

from metaq.backends.rocketmq.names import is_derived_topic, with_namespace, without_namespace


@pytest.mark.parametrize(
    ("name", "served"),
    [
        ("orders", "ns%orders"),
        ("ns%orders", "ns%orders"),  # already has it
        ("%RETRY%billing", "%RETRY%ns%billing"),
        ("%DLQ%billing", "%DLQ%ns%billing"),
        ("TBW102", "TBW102"),
        ("rmq_sys_REVIVE_LOG_c", "rmq_sys_REVIVE_LOG_c"),
        ("CID_RMQ_SYS_TRANS", "CID_RMQ_SYS_TRANS"),
        ("RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC", "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC"),
    ],
)
def test_a_namespace_goes_in_front_of_names_of_users(name: str, served: str) -> None:
    assert with_namespace(name, "ns") == served
    assert with_namespace(name, None) == with_namespace(name, "") == name


@pytest.mark.parametrize("name", ["orders", "%RETRY%billing", "TBW102"])
def test_and_is_taken_off_again(name: str) -> None:
    assert without_namespace(with_namespace(name, "ns"), "ns") == name
    assert without_namespace(name, None) == name


@pytest.mark.parametrize("name", ["orders", "other%orders", "%RETRY%other%billing", "nsx%orders"])
def test_names_of_others_have_none(name: str) -> None:
    assert without_namespace(name, "ns") is None


def test_topics_of_groups_are_distinguished_from_others() -> None:
    assert [is_derived_topic(name) for name in ("%RETRY%g", "%DLQ%g", "RETRY", "orders%RETRY%")] == [
        True, True, False, False,
    ]  # fmt: skip
