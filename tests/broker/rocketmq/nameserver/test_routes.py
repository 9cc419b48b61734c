"""The route table alone: who is alive, whose queues are known, and what each way of going away leaves behind."""

from __future__ import annotations

import pytest
from metaq_broker.clock import ManualClock
from metaq_broker.rocketmq.nameserver.routes import BROKER_TIMEOUT_MS, BrokerRegistration, RouteLimits, RouteTable

from metaq.errors import FieldError
from metaq.protocols.remoting.bodies.registration import DataVersion, TopicConfigBody

V1, V2 = DataVersion(timestamp=1, counter=1), DataVersion(timestamp=1, counter=2)


def topics(**reads: int) -> dict[str, TopicConfigBody]:
    return {name: TopicConfigBody(topic_name=name, read_queue_nums=count) for name, count in reads.items()}


def broker(name: str = "a", broker_id: int = 0, port: int = 1, cluster: str = "C", **fields: int) -> BrokerRegistration:
    return BrokerRegistration(cluster, name, f"h:{port}", broker_id, f"h:{port + 1}", **fields)


class Table(RouteTable):
    def __init__(self, limits: RouteLimits | None = None) -> None:
        self.clock = ManualClock()
        super().__init__(self.clock.now_ms, limits)

    def queues(self, topic: str) -> dict[str, int]:
        route = self.route(topic)
        return {} if route is None else {each.broker_name: each.read_queue_nums for each in route.queue_datas}

    def addresses(self, topic: str) -> dict[str, dict[int, str]]:
        route = self.route(topic)
        return {} if route is None else {each.broker_name: each.broker_addrs for each in route.broker_datas}

    def empty(self) -> bool:
        tables = (self._clusters, self._brokers, self._topics, self._topics_of, self._live, self._owned)
        return not any(tables) and self._queue_rows == 0


def test_a_broker_lives_until_it_is_silent_for_its_timeout() -> None:
    table = Table()
    table.register(broker("a", port=1), topics(T=4), V1, "one")
    table.register(broker("b", port=3, timeout_ms=5000), topics(T=2), V1, "two")
    table.clock.advance(5000)
    assert table.expire() == []
    table.clock.advance(1)
    assert [live.registration.name for live in table.expire()] == ["b"]
    assert table.queues("T") == {"a": 4}
    table.clock.advance(BROKER_TIMEOUT_MS - 5001)
    assert table.expire() == []
    table.clock.advance(1)
    assert [live.registration.name for live in table.expire()] == ["a"]
    assert table.empty()


@pytest.mark.parametrize("sign", ["register", "touch"])
def test_a_sign_of_life_begins_the_timeout_anew(sign: str) -> None:
    table = Table()
    table.register(broker(), topics(T=4), V1, "one")
    table.clock.advance(BROKER_TIMEOUT_MS)
    if sign == "register":
        table.register(broker(), topics(T=4), V1, "one")
    else:
        table.touch("C", "h:1")
    table.clock.advance(BROKER_TIMEOUT_MS)
    assert table.expire() == []


def test_the_end_of_a_connection_removes_its_last_registrations() -> None:
    table = Table()
    table.register(broker("a", port=1), topics(T=4), V1, "old connection")
    table.register(broker("b", port=3), topics(T=4), V1, "old connection")
    table.register(broker("a", port=1), topics(T=4), V1, "new connection")
    assert [who.name for who in table.connection_lost("old connection")] == ["b"]
    assert table.queues("T") == {"a": 4}
    assert table.connection_lost("old connection") == []
    assert [who.name for who in table.connection_lost("new connection")] == ["a"]
    assert table.empty()


def test_queues_stay_while_a_slave_is_there_and_go_with_the_last_broker() -> None:
    table = Table()
    assert table.register(broker(port=1), topics(T=4), V1, "m") is None
    master = table.register(broker(broker_id=1, port=5), topics(S=1), V1, "s")
    assert master is not None
    assert master.registration.ha_address == "h:2"
    assert table.route("S") is None
    table.connection_lost("m")
    assert table.addresses("T") == {"a": {1: "h:5"}}
    table.unregister(broker(broker_id=1, port=5))
    assert table.empty()


def test_a_slave_that_becomes_master_is_under_one_id_only() -> None:
    table = Table()
    table.register(broker(port=1), topics(T=4), V1, "m")
    table.register(broker(broker_id=1, port=5), {}, V1, "s")
    table.connection_lost("m")
    table.register(broker(broker_id=0, port=5), topics(T=6), V2, "s")
    assert table.addresses("T") == {"a": {0: "h:5"}}
    assert table.queues("T") == {"a": 6}


@pytest.mark.parametrize(("version", "reads"), [(V1, 4), (V2, 8)])
def test_known_topics_change_with_the_data_version_only(version: DataVersion, reads: int) -> None:
    table = Table()
    table.register(broker(), topics(T=4), V1, "m")
    table.register(broker(), topics(T=8), version, "m")
    assert table.queues("T") == {"a": reads}


def test_a_new_topic_is_taken_under_any_data_version() -> None:
    table = Table()
    table.register(broker(), topics(T=4), V1, "m")
    table.register(broker(), topics(U=1), V2, "m")
    table.register(broker(), topics(V=2, T=8), V2, "m")
    assert [table.queues(name) for name in "TUV"] == [{"a": 4}, {"a": 1}, {"a": 2}]


def test_a_replaced_address_is_not_removed_by_the_end_of_the_old_one() -> None:
    table = Table()
    table.register(broker(port=1), topics(T=4), V1, "old")
    table.register(broker(port=9), topics(T=4), V2, "new")
    table.connection_lost("old")
    assert table.addresses("T") == {"a": {0: "h:9"}}


def test_unregistering_with_a_wrong_id_or_address_leaves_others_alone() -> None:
    table = Table()
    table.register(broker(port=1), topics(T=4), V1, "m")
    table.unregister(broker(broker_id=1, port=77))
    table.unregister(broker("unknown", port=78))
    assert table.queues("T") == {"a": 4}


def test_a_broker_with_a_wrong_name_or_id_cannot_be_made_immortal() -> None:
    table = Table()
    table.register(broker("a", port=1), topics(T=4), V1, "one")
    for who in (broker("b", port=1), broker("a", broker_id=1, port=1)):
        table.unregister(who)
    assert table.queues("T") == {"a": 4}
    table.clock.advance(BROKER_TIMEOUT_MS + 1)
    table.expire()
    assert table.empty()


def test_a_broker_that_takes_another_name_leaves_nothing_under_the_old_one() -> None:
    table = Table(RouteLimits(brokers_max=1))
    for name in ("a", "b", "c"):
        table.register(broker(name, port=1), topics(T=4), V1, "one")
        assert table.queues("T") == {name: 4}
        assert table.cluster_info().broker_addr_table.keys() == {name}
    assert [who.name for who in table.connection_lost("one")] == ["c"]
    assert table.empty()


def test_write_permission_comes_back_with_a_changed_registration() -> None:
    table = Table()
    table.register(broker(), topics(T=4, U=4), V1, "m")
    assert table.remove_write_permission("a") == 2
    table.register(broker(), topics(T=4, U=4), V1, "m")
    route = table.route("T")
    assert route is not None
    assert route.queue_datas[0].perm == 4
    table.register(broker(), topics(T=4, U=4), V2, "m")
    route = table.route("T")
    assert route is not None
    assert route.queue_datas[0].perm == 6
    assert table.add_write_permission("nobody") == 0


def test_a_topic_is_deleted_everywhere_or_in_a_cluster() -> None:
    table = Table()
    table.register(broker("a", port=1), topics(T=4), V1, "a")
    table.register(broker("b", port=3, cluster="D"), topics(T=2), V1, "b")
    assert table.topics_of_cluster("D") == ("T",)
    table.delete_topic("T", "C")
    assert table.queues("T") == {"b": 2}
    table.delete_topic("T")
    table.delete_topic("T")
    assert table.topics() == ()


def test_limits_refuse_and_change_nothing() -> None:
    table = Table(RouteLimits(brokers_max=2, queues_max=3))
    table.register(broker("a", port=1), topics(T=1, U=1), V1, "a")
    with pytest.raises(FieldError, match="at most 3 of all brokers together"):
        table.register(broker("b", port=3), topics(T=1, U=1), V1, "b")
    table.register(broker("b", port=3), topics(T=1), V1, "b")
    table.register(broker("b", port=3), topics(T=2), V2, "b")  # what is known takes nothing more
    with pytest.raises(FieldError, match="one of 2 brokers"):
        table.register(broker("c", port=5), {}, V1, "c")
    assert table.queues("T") == {"a": 1, "b": 2}
    assert table.broker_count == 2


def test_a_broker_name_is_in_one_cluster() -> None:
    table = Table()
    table.register(broker("a", port=1), {}, V1, "a")
    with pytest.raises(FieldError, match=r"'clusterName' of REGISTER_BROKER is 'D'; it must be 'C'"):
        table.register(broker("a", broker_id=1, port=2, cluster="D"), {}, V1, "b")


@pytest.mark.parametrize(
    "fields",
    [
        {"cluster": ""},
        {"name": "x" * 256},
        {"address": ""},
        {"broker_id": -1},
        {"ha_address": "x" * 256},
        {"timeout_ms": 0},
        {"filter_servers": ("x" * 256,)},
        {"filter_servers": ("x",) * 17},
    ],
)
def test_registrations_that_cannot_be(fields: dict[str, object]) -> None:
    good = {"cluster": "C", "name": "a", "address": "h:1", "broker_id": 0}
    with pytest.raises(FieldError):
        BrokerRegistration(**{**good, **fields})  # type: ignore[arg-type]
    assert BrokerRegistration(**good)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "x" * 256])
def test_topic_names_that_cannot_be(name: str) -> None:
    table = Table()
    with pytest.raises(FieldError, match="topicName"):
        table.register(broker(), {"t": TopicConfigBody(topic_name=name)}, V1, "m")
    assert table.empty()


@pytest.mark.parametrize(
    "other",
    [broker(port=9), broker(port=9, cluster="D"), broker(port=1), broker("b", port=1)],
    ids=["address", "cluster", "same", "name"],
)
def test_a_reserved_broker_is_its_owner_s(other: BrokerRegistration) -> None:
    table = Table()
    table.reserve("a", "own")
    table.register(broker(), topics(T=4), V1, "own")
    with pytest.raises(FieldError, match="another: the broker of this port has it"):
        table.register(other, topics(T=1), V2, "stranger")
    table.unregister(broker(), "stranger")
    table.connection_lost("stranger")
    assert (table.queues("T"), table.addresses("T")) == ({"a": 4}, {"a": {0: "h:1"}})
    table.register(broker(broker_id=1, port=5), {}, V1, "slave")
    table.register(broker("b", port=7), topics(T=2), V1, "stranger")
    assert table.queues("T") == {"a": 4, "b": 2}
    table.unregister(broker(), "own")
    assert table.addresses("T")["a"] == {1: "h:5"}
