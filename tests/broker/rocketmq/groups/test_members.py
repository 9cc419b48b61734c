"""Members of groups: who is in, who hears of a change, and how much clients may make the broker remember."""

from __future__ import annotations

from collections.abc import Hashable

import pytest
from metaq_broker.operate.config.rocketmq import RocketmqConfig
from metaq_broker.rocketmq.groups.limits import DEFAULT_LIMITS, GroupLimitReached, GroupLimits, NameRefused
from metaq_broker.rocketmq.groups.members import ClientIdentity, ConsumerGroup, GroupSubscription, Members


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class KnownMembers:
    def __init__(self, limits: GroupLimits = DEFAULT_LIMITS) -> None:
        self.clock = Clock()
        self.members = Members(self.clock, limits)
        self.heard: list[tuple[str, tuple[Hashable, ...]]] = []
        self.members.when_changed(lambda group, connections: self.heard.append((group, connections)))

    def beat(self, connection: str, group: str, *topics: str, client_id: str | None = None, version: int = 1) -> bool:
        identity = ClientIdentity(connection, client_id or f"id-{connection}")
        subscriptions = tuple(GroupSubscription(topic, version=version) for topic in topics)
        consumer = ConsumerGroup(group, subscriptions)
        self.members.check(identity, [consumer], [])
        return self.members.consumer_seen(identity, consumer)

    def news(self) -> list[tuple[str, tuple[Hashable, ...]]]:
        heard, self.heard[:] = list(self.heard), []
        return heard


def test_members_hear_of_those_who_come_and_go() -> None:
    known = KnownMembers()
    assert known.beat("a", "g", "T")
    assert known.news() == [("g", ("a",))]
    assert not known.beat("a", "g", "T")
    assert known.news() == []
    assert known.beat("b", "g", "T")
    assert known.news() == [("g", ("a", "b"))]
    assert known.members.client_ids("g") == ["id-a", "id-b"]
    known.members.consumer_left("a", "g")
    assert known.news() == [("g", ("b",))]
    known.members.consumer_left("a", "g")  # again: the others hear all the same
    assert known.news() == [("g", ("b",))]
    known.members.connection_lost("b")
    assert known.news() == []
    assert known.members.client_ids("g") == []
    assert known.members.consumer_group("g") is None
    assert known.members.count == 0


def test_a_topic_that_comes_or_goes_is_a_change_and_a_new_version_is_not() -> None:
    known = KnownMembers()
    known.beat("a", "g", "T")
    known.news()
    assert not known.beat("a", "g", "T", version=2)
    assert known.beat("a", "g", "T", "U", version=2)
    assert known.beat("a", "g", "U", version=1)
    assert len(known.news()) == 2
    subscriptions = known.members.subscriptions("g")
    assert subscriptions is not None
    assert {topic: each.version for topic, each in subscriptions.items()} == {"U": 2}  # older ones change nothing
    assert known.members.groups_subscribed_to("U") == ["g"]
    assert known.members.groups_subscribed_to("T") == []


def test_a_client_that_connects_again_is_one_member() -> None:
    known = KnownMembers()
    known.beat("old", "g", "T", client_id="x")
    known.beat("new", "g", "T", client_id="x")
    assert known.members.client_ids("g") == ["x"]
    known.members.connection_lost("old")
    assert known.members.client_ids("g") == ["x"]
    assert known.members.is_member("g", "x")
    assert not known.members.is_member("g", "y")
    assert not known.members.is_member("h", "x")


def test_two_groups_of_one_client_end_separately() -> None:
    known = KnownMembers()
    known.beat("a", "g", "T")
    known.beat("a", "h", "T")
    known.members.producer_seen(ClientIdentity("a", "id-a"), "p")
    known.members.consumer_left("a", "g")
    assert known.members.client_ids("h") == ["id-a"]
    assert [each.client_id for each in known.members.producers("p")] == ["id-a"]
    known.members.connection_lost("a")
    assert known.members.client_ids("h") == []
    assert known.members.producers("p") == []
    assert list(known.members.groups()) == []


def test_silent_clients_are_taken_out_by_group() -> None:
    known = KnownMembers()
    known.beat("a", "g", "T")
    known.beat("a", "h", "T")
    known.beat("b", "g", "T")
    known.members.producer_seen(ClientIdentity("a", "id-a"), "p")
    known.clock.now += 100
    known.beat("b", "g", "T")
    known.members.touch_consumer(ClientIdentity("a", "id-a"), "h")
    known.news()
    known.clock.now += 30
    known.members.expire()
    assert known.news() == [("g", ("b",))]
    assert known.members.client_ids("h") == ["id-a"]
    assert known.members.producers("p") == []
    assert not known.members.touch_consumer(ClientIdentity("a", "id-a"), "g")


@pytest.mark.parametrize(
    ("limits", "group", "topics", "text"),
    [
        (RocketmqConfig(members_max=1), "h", ["T"], "members of groups: the broker allows 1"),
        (RocketmqConfig(groups_of_client_max=1), "h", ["T"], "groups of one client: the broker allows 1"),
        (RocketmqConfig(subscriptions_of_group_max=1), "g", ["T", "U"], "subscriptions of a group"),
        (RocketmqConfig(expression_bytes_max=10), "g", ["T" * 10], "bytes in a subscription"),
        (RocketmqConfig(expressions_bytes_max=10), "g", ["T" * 10], "bytes in subscriptions"),
    ],
)
def test_limits(limits: GroupLimits, group: str, topics: list[str], text: str) -> None:
    known = KnownMembers(limits)
    known.beat("a", "g", "T")
    with pytest.raises(GroupLimitReached, match=text):
        known.beat("a", group, *topics)
    assert known.members.client_ids("g") == ["id-a"]
    assert not known.beat("a", "g", "T")


def test_names_that_cannot_be_kept() -> None:
    known = KnownMembers()
    with pytest.raises(NameRefused, match="takes 256 bytes"):
        known.beat("a", "g" * 256, "T")
    with pytest.raises(NameRefused, match="not valid Unicode"):
        known.beat("a", "g", "T", client_id="\ud800")
    assert known.members.count == 0


def test_what_is_remembered_is_given_back() -> None:
    """The sum of subscriptions is that of those that are there, whatever came and went."""
    known = KnownMembers(RocketmqConfig(expressions_bytes_max=40))
    for number in range(50):
        known.beat("a", "g", f"T{number}")
        known.beat("b", f"h{number}", "U" * 8)
        known.members.consumer_left("b", f"h{number}")
    known.members.connection_lost("a")
    known.beat("a", "g", "T" * 30)


KIBIBYTE = "x" * 1024


@pytest.mark.parametrize(
    "subscription",
    [
        GroupSubscription("T", KIBIBYTE),
        GroupSubscription("T", kind=KIBIBYTE),
        GroupSubscription("T", tags=(KIBIBYTE,)),
        GroupSubscription("T", tags=("",) * 1001),
        GroupSubscription("T", tag_hashes=(1,) * 1001),
    ],
    ids=["expression", "kind", "tag", "empty tags", "hashes"],
)
def test_everything_of_a_subscription_counts(subscription: GroupSubscription) -> None:
    known = KnownMembers(RocketmqConfig(expression_bytes_max=1000))
    with pytest.raises(GroupLimitReached, match="bytes in a subscription"):
        known.members.check(ClientIdentity("a", "id"), [ConsumerGroup("g", (subscription,))], [])


def test_subscriptions_that_do_not_count_are_not_kept() -> None:
    """Those of an older version than the known ones: they are in no sum."""
    known = KnownMembers()
    known.beat("a", "g", "T", version=9)
    old = ConsumerGroup("g", (GroupSubscription("T", KIBIBYTE, version=1),), "PULL")
    known.members.consumer_seen(ClientIdentity("a", "id-a"), old)
    entry = known.members._consumers["g"]
    assert (entry.last.consume_type, entry.last.subscriptions) == ("PULL", ())
    assert [each.expression for each in entry.subscriptions.values()] == ["*"]


def test_a_tag_counts_once_against_the_limit_of_a_subscription() -> None:
    limits = RocketmqConfig(expression_bytes_max=1000)
    members, client = Members(lambda: 0.0, limits), ClientIdentity("a", "id-a")

    def check(expression: str, *tags: str, hashes: int = 0) -> None:
        subscription = GroupSubscription("T", expression, tags=tags, tag_hashes=tuple(range(hashes)))
        members.check(client, [ConsumerGroup("g", (subscription,))], [])

    check("t" * 1000, "t" * 999)
    check(" || ".join(["a"] * 200), *["a"] * 200, hashes=200)
    for expression, tags, hashes in (("t" * 1001, (), 0), ("*", ("t" * 1000,), 0), ("*", (), 1001)):
        with pytest.raises(GroupLimitReached, match="bytes in a subscription"):
            check(expression, *tags, hashes=hashes)
