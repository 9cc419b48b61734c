"""Members of groups: who is in, who hears of a change, and how much clients may make the broker remember."""

from __future__ import annotations

from collections.abc import Hashable

import pytest
from metaq_broker.groups.limits import GroupLimitReached, GroupLimits, NameRefused
from metaq_broker.groups.members import ClientIdentity, ConsumerGroup, Members, Subscription


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class World:
    def __init__(self, limits: GroupLimits | None = None) -> None:
        self.clock = Clock()
        self.members = Members(self.clock, limits)
        self.heard: list[tuple[str, tuple[Hashable, ...]]] = []
        self.members.when_changed(lambda group, connections: self.heard.append((group, connections)))

    def beat(self, connection: str, group: str, *topics: str, client_id: str | None = None, version: int = 1) -> bool:
        identity = ClientIdentity(connection, client_id or f"id-{connection}")
        subscriptions = tuple(Subscription(topic, version=version) for topic in topics)
        consumer = ConsumerGroup(group, subscriptions)
        self.members.check(identity, [consumer], [])
        return self.members.consumer_seen(identity, consumer)

    def news(self) -> list[tuple[str, tuple[Hashable, ...]]]:
        heard, self.heard[:] = list(self.heard), []
        return heard


def test_members_hear_of_those_who_come_and_go() -> None:
    world = World()
    assert world.beat("a", "g", "T")
    assert world.news() == [("g", ("a",))]
    assert not world.beat("a", "g", "T")
    assert world.news() == []
    assert world.beat("b", "g", "T")
    assert world.news() == [("g", ("a", "b"))]
    assert world.members.client_ids("g") == ["id-a", "id-b"]
    world.members.consumer_left("a", "g")
    assert world.news() == [("g", ("b",))]
    world.members.consumer_left("a", "g")  # again: the others hear all the same
    assert world.news() == [("g", ("b",))]
    world.members.connection_lost("b")
    assert world.news() == []
    assert world.members.client_ids("g") == []
    assert world.members.consumer_group("g") is None
    assert world.members.count == 0


def test_a_topic_that_comes_or_goes_is_a_change_and_a_new_version_is_not() -> None:
    world = World()
    world.beat("a", "g", "T")
    world.news()
    assert not world.beat("a", "g", "T", version=2)
    assert world.beat("a", "g", "T", "U", version=2)
    assert world.beat("a", "g", "U", version=1)
    assert len(world.news()) == 2
    subscriptions = world.members.subscriptions("g")
    assert subscriptions is not None
    assert {topic: each.version for topic, each in subscriptions.items()} == {"U": 2}  # older ones change nothing
    assert world.members.groups_subscribed_to("U") == ["g"]
    assert world.members.groups_subscribed_to("T") == []


def test_a_client_that_connects_again_is_one_member() -> None:
    world = World()
    world.beat("old", "g", "T", client_id="x")
    world.beat("new", "g", "T", client_id="x")
    assert world.members.client_ids("g") == ["x"]
    world.members.connection_lost("old")
    assert world.members.client_ids("g") == ["x"]
    assert world.members.is_member("g", "new", "x")
    assert not world.members.is_member("g", "old", "x")
    assert not world.members.is_member("g", "new", "y")


def test_two_groups_of_one_client_end_separately() -> None:
    world = World()
    world.beat("a", "g", "T")
    world.beat("a", "h", "T")
    world.members.producer_seen(ClientIdentity("a", "id-a"), "p")
    world.members.consumer_left("a", "g")
    assert world.members.client_ids("h") == ["id-a"]
    assert [each.client_id for each in world.members.producers("p")] == ["id-a"]
    world.members.connection_lost("a")
    assert world.members.client_ids("h") == []
    assert world.members.producers("p") == []
    assert list(world.members.groups()) == []


def test_silent_clients_are_taken_out_by_group() -> None:
    world = World()
    world.beat("a", "g", "T")
    world.beat("a", "h", "T")
    world.beat("b", "g", "T")
    world.members.producer_seen(ClientIdentity("a", "id-a"), "p")
    world.clock.now += 100
    world.beat("b", "g", "T")
    world.members.touch_consumer(ClientIdentity("a", "id-a"), "h")
    world.news()
    world.clock.now += 30
    world.members.expire()
    assert world.news() == [("g", ("b",))]
    assert world.members.client_ids("h") == ["id-a"]
    assert world.members.producers("p") == []
    assert not world.members.touch_consumer(ClientIdentity("a", "id-a"), "g")


@pytest.mark.parametrize(
    ("limits", "group", "topics", "text"),
    [
        (GroupLimits(members_max=1), "h", ["T"], "members of groups: the broker allows 1"),
        (GroupLimits(groups_of_client_max=1), "h", ["T"], "groups of one client: the broker allows 1"),
        (GroupLimits(subscriptions_of_group_max=1), "g", ["T", "U"], "subscriptions of a group"),
        (GroupLimits(expression_bytes_max=10), "g", ["T" * 10], "bytes in a subscription"),
        (GroupLimits(expressions_bytes_max=10), "g", ["T" * 10], "bytes in subscriptions"),
    ],
)
def test_limits(limits: GroupLimits, group: str, topics: list[str], text: str) -> None:
    world = World(limits)
    world.beat("a", "g", "T")
    with pytest.raises(GroupLimitReached, match=text):
        world.beat("a", group, *topics)
    assert world.members.client_ids("g") == ["id-a"]
    assert not world.beat("a", "g", "T")


def test_names_that_cannot_be_kept() -> None:
    world = World(GroupLimits(name_bytes_max=10))
    with pytest.raises(NameRefused, match="takes 11 bytes"):
        world.beat("a", "g" * 11, "T")
    with pytest.raises(NameRefused, match="not valid Unicode"):
        world.beat("a", "g", "T", client_id="\ud800")
    assert world.members.count == 0


def test_what_is_remembered_is_given_back() -> None:
    """The sum of subscriptions is that of those that are there, whatever came and went."""
    world = World(GroupLimits(expressions_bytes_max=40))
    for number in range(50):
        world.beat("a", "g", f"T{number}")
        world.beat("b", f"h{number}", "U" * 8)
        world.members.consumer_left("b", f"h{number}")
    world.members.connection_lost("a")
    world.beat("a", "g", "T" * 30)


KIBIBYTE = "x" * 1024


@pytest.mark.parametrize(
    "subscription",
    [
        Subscription("T", KIBIBYTE),
        Subscription("T", kind=KIBIBYTE),
        Subscription("T", tags=(KIBIBYTE,)),
        Subscription("T", tags=("",) * 128),
        Subscription("T", tag_hashes=(1,) * 128),
    ],
    ids=["expression", "kind", "tag", "empty tags", "hashes"],
)
def test_everything_of_a_subscription_counts(subscription: Subscription) -> None:
    world = World(GroupLimits(expression_bytes_max=1000))
    with pytest.raises(GroupLimitReached, match="bytes in a subscription"):
        world.members.check(ClientIdentity("a", "id"), [ConsumerGroup("g", (subscription,))], [])


def test_subscriptions_that_do_not_count_are_not_kept() -> None:
    """Those of an older version than the known ones: they are in no sum."""
    world = World()
    world.beat("a", "g", "T", version=9)
    old = ConsumerGroup("g", (Subscription("T", KIBIBYTE, version=1),), "PULL")
    world.members.consumer_seen(ClientIdentity("a", "id-a"), old)
    entry = world.members._consumers["g"]
    assert (entry.last.consume_type, entry.last.subscriptions) == ("PULL", ())
    assert [each.expression for each in entry.subscriptions.values()] == ["*"]
