"""Two producers and a group of two consumers: each message arrives once, and each member gets some."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fix_broker import wait_until

from peers.rocketmq.conversation import Conversation

pytestmark = [pytest.mark.process, pytest.mark.slow]

REFERENCES = ("4.9.7", "5.5.0")
QUEUES, PRODUCERS, SENDS = 8, 2, 200
DEADLINE_S = 90.0
"""A new member may wait for its queues until the others look again, after 20 s."""


def test_a_group_of_two_reads_everything_once(
    converse: Callable[..., Conversation], topic: Callable[[int], str], group: str
) -> None:
    name = topic(QUEUES)
    members = [converse("push", group, topic=name) for _ in range(2)]
    producers = [converse("producer", f"{group}-producers-{number}") for number in range(PRODUCERS)]
    before: list[str] = []

    def arrived() -> list[str]:
        return [body for member in members for body in member.bodies()]

    def are_shared() -> bool:
        """Whether messages to each queue, sent now, reach both members, and each message one of them: the first member
        has the queues of the second until it is told of it.
        """
        seen = [len(member.bodies()) for member in members]
        sent = [f"before-{len(before) + number}" for number in range(QUEUES)]
        before.extend(sent)
        for body in sent:
            producers[0].send(name, body)
        wait_until(lambda: set(sent) <= set(arrived()), "what was sent", DEADLINE_S)
        new = [len(member.bodies()) - count for member, count in zip(members, seen, strict=True)]
        return all(new) and sum(new) == len(sent)

    wait_until(are_shared, "both members to have queues", DEADLINE_S)
    sent = [f"{at}-{number}" for at in range(PRODUCERS) for number in range(SENDS)]
    for number in range(SENDS):
        for at, producer in enumerate(producers):
            producer.send(name, f"{at}-{number}")
    wait_until(lambda: set(sent) <= set(arrived()), "all messages", DEADLINE_S)
    assert sorted(set(arrived()) - set(before)) == sorted(sent)
    assert len([body for body in arrived() if body not in before]) == PRODUCERS * SENDS
    assert all(set(member.bodies()) & set(sent) for member in members)
