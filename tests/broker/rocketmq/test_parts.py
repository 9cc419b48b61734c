"""What the front end is made of goes by the configuration."""

from __future__ import annotations

from dataclasses import fields

from metaq_broker.operate.config.configuration import parse
from metaq_broker.operate.config.rocketmq import RocketmqConfig
from metaq_broker.rocketmq.groups.limits import GroupLimits
from metaq_broker.rocketmq.parts import group_limits

SYSTEM = (
    "[system]\nbrokerId=5\nnumPartitions=4\nunflushThreshold=0\nunflushInterval=1000\nmaxSegmentSize=1048576\n"
    "maxTransferSize=1024\n[topic=t]\n[rocketmq]\nenabled=true\n"
)
KEYS = {
    "maxGroups": "groups_max",
    "maxMembers": "members_max",
    "maxGroupsPerClient": "groups_of_client_max",
    "maxSubscriptionsPerGroup": "subscriptions_of_group_max",
    "maxSubscriptionBytes": "expression_bytes_max",
    "maxSubscriptionsBytes": "expressions_bytes_max",
    "maxQueuesPerGroup": "queues_of_group_max",
    "maxLocks": "locks_max",
}


def configured(lines: str = "") -> RocketmqConfig:
    """The section with further lines."""
    config = parse((SYSTEM + lines).encode()).rocketmq
    assert config is not None
    return config


def test_limits_of_groups_are_those_of_the_configuration() -> None:
    assert group_limits(configured()) == GroupLimits()
    values = {key: (2 << 20 if key == "maxSubscriptionsBytes" else 2000 + number) for number, key in enumerate(KEYS)}
    limits = group_limits(configured("".join(f"{key}={value}\n" for key, value in values.items())))
    assert {attribute: getattr(limits, attribute) for attribute in KEYS.values()} == dict(
        zip(KEYS.values(), values.values(), strict=True)
    )
    assert {field.name for field in fields(GroupLimits)} - set(KEYS.values()) == {"name_bytes_max"}
