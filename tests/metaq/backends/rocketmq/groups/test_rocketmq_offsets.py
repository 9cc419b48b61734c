"""Offsets of queues against scripted brokers of both versions; times against a plain search over all store times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metaq.backends.rocketmq.errors import AccessDenied, RequestRefused
from metaq.backends.rocketmq.groups.offsets import Offsets
from metaq.backends.rocketmq.pool import SessionPool
from metaq.backends.rocketmq.reads.times import TimeBoundary
from metaq.discovery.name_server import NameServerDirectory
from metaq.errors import ConnectionFailed, ProtocolError
from metaq.model import OffsetRange, Partition, TopicPartition
from metaq.net.retry import RetryPolicy
from metaq.net.transport import Timeouts
from metaq.protocols.remoting.acl import Credentials
from metaq.protocols.remoting.codes import ResponseCode
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers.offsets import GetMaxOffset, GetMinOffset, UpdateConsumerOffset
from metaq.protocols.remoting.headers.pulls import PullMessage
from metaq.testing.manual_clock import ManualClock
from metaq.testing.rocketmq_server import ScriptedCluster


class Bench:
    """Two brokers, the first with a slave; ``orders`` has two queues at each."""

    def __init__(self, cluster: ScriptedCluster, credentials: Credentials | None = None) -> None:
        self.cluster, self.clock = cluster, ManualClock()
        self.pool = SessionPool(Timeouts(2.0, 2.0), clock=self.clock, credentials=credentials)
        self.directory = NameServerDirectory(cluster.name_servers, self.pool)
        self.offsets = Offsets(self.pool, self.directory, RetryPolicy(2, 0.1))
        cluster.create_topic("orders", 2)
        self.queues = [TopicPartition("orders", queue) for queue in self.directory.queues("orders")]


@pytest.fixture(params=[False, True], ids=["4.9.7", "5.5.0"])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    with ScriptedCluster({"broker-a": (1,), "broker-b": ()}, is_v5=request.param) as cluster:
        bench = Bench(cluster)
        yield bench
        bench.pool.close()


def test_ranges_of_all_queues_take_one_exchange_a_broker(bench: Bench) -> None:
    bench.cluster.append("orders", Partition("broker-a", 1), [b"x"] * 70)
    bench.cluster.remove_below("orders", Partition("broker-a", 1), 20)
    bench.cluster.append("orders", Partition("broker-b", 0), [b"x"] * 3)
    found = bench.offsets.ranges(bench.queues)
    assert {str(queue): (at.start, at.end) for queue, at in found.items()} == {
        "orders/broker-a:0": (0, 0),
        "orders/broker-a:1": (20, 70),
        "orders/broker-b:0": (0, 3),
        "orders/broker-b:1": (0, 0),
    }
    for name in ("broker-a", "broker-b"):
        requests = bench.cluster.broker(name).requests
        assert {command.ext["bname"] for command in requests} == {name}
        assert len(requests) == 4
        assert bench.pool.idle_count(bench.cluster.broker(name).address()) == 1


def test_many_queues(bench: Bench) -> None:
    bench.cluster.create_topic("wide", 300, broker="broker-a")
    queues = [TopicPartition("wide", queue) for queue in bench.directory.queues("wide")]
    assert len(bench.offsets.ranges(queues)) == 300


def test_a_slave_is_asked_when_its_master_is_away(bench: Bench) -> None:
    bench.cluster.append("orders", Partition("broker-a", 0), [b"x"] * 5)
    bench.cluster.stop_broker("broker-a", 0, is_in_route=True)
    assert bench.offsets.ranges(bench.queues)[bench.queues[0]] == OffsetRange(0, 5)


def test_brokers_that_do_not_answer_are_named(bench: Bench) -> None:
    bench.cluster.stop_broker("broker-b", 0)
    found, away = bench.offsets.ranges_now(bench.queues)
    assert [str(queue) for queue in found] == ["orders/broker-a:0", "orders/broker-a:1"]
    assert list(away) == ["broker-b"]
    assert isinstance(away["broker-b"], ConnectionFailed)
    with pytest.raises(ConnectionFailed, match=r"the offsets of queues|connect"):
        bench.offsets.ranges(bench.queues)
    assert len(bench.clock.slept_s) == 2


def test_a_busy_broker_is_asked_again(bench: Bench) -> None:
    bench.cluster.broker("broker-a").refuse(GetMaxOffset.CODE, ResponseCode.SYSTEM_BUSY)
    assert len(bench.offsets.ranges(bench.queues)) == 4


def test_positions_of_groups(bench: Bench) -> None:
    bench.cluster.append("orders", Partition("broker-a", 0), [b"x"] * 9)
    first, second = bench.queues[:2]
    bench.offsets.commit("billing", {first: 7, second: 0})
    assert bench.offsets.committed("billing", [first, second]) == {first: 7, second: 0}
    unknown = bench.offsets.committed("nobody", [first])[first]
    assert unknown == (None if bench.cluster.broker("broker-a").is_v5 else 0)  # 4.x says 0 while nothing was removed
    bench.cluster.remove_below("orders", Partition("broker-a", 0), 5)
    assert bench.offsets.committed("nobody", [first]) == {first: None}
    requests = [each for each in bench.cluster.broker("broker-a").requests if each.code == 15]
    assert len(requests) == 2
    assert not any(each.is_oneway for each in requests)


def test_positions_are_the_masters(bench: Bench) -> None:
    bench.cluster.stop_broker("broker-a", 0, is_in_route=True)
    with pytest.raises(ConnectionFailed):
        bench.offsets.commit("billing", {bench.queues[0]: 7})


def test_groups_and_topics_get_the_namespace(bench: Bench) -> None:
    bench.cluster.create_topic("ns%orders", 1, broker="broker-a")
    directory = NameServerDirectory(bench.cluster.name_servers, bench.pool, namespace="ns")
    offsets = Offsets(bench.pool, directory)
    queue = TopicPartition("orders", Partition("broker-a", 0))
    offsets.commit("billing", {queue: 3})
    assert list(bench.cluster.broker("broker-a").store.group_offsets) == [("ns%billing", "ns%orders", 0)]
    assert offsets.committed("billing", [queue]) == {queue: 3}


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(st.sampled_from([0, 0, 0, 1, 2, 1000]), max_size=150),
    removed=st.integers(0, 40),
    probe=st.integers(-3, 3),
    at=st.floats(0, 1),
)
def test_times_are_exact_whatever_the_broker_answers(
    bench: Bench, steps: list[int], removed: int, probe: int, at: float
) -> None:
    topic, queue = f"t{bench.clock.monotonic()}".replace(".", "_"), Partition("broker-a", 0)
    bench.clock.advance(1)
    bench.cluster.create_topic(topic, 1)
    now, times = 1_700_000_000_000, []
    for step in steps:
        now += step
        times.append(now)
        bench.cluster.append(topic, queue, [b"x"], store_ms=now)
    bench.cluster.remove_below(topic, queue, removed)
    kept = dict(list(enumerate(times))[removed:])
    time_ms = (times[int(at * (len(times) - 1))] if times else now) + probe
    where = TopicPartition(topic, queue)
    first, end = min(removed, len(times)), len(times)
    lower = min([offset for offset, stored in kept.items() if stored >= time_ms], default=end)
    upper = max([offset + 1 for offset, stored in kept.items() if stored <= time_ms], default=first)
    assert bench.offsets.at({where: time_ms}) == {where: lower}
    assert bench.offsets.at({where: time_ms}, TimeBoundary.UPPER) == {where: upper}


def test_a_message_that_comes_late_does_not_move_a_time(bench: Bench) -> None:
    queue = bench.queues[0]
    bench.cluster.append("orders", queue.partition, [b"x"] * 5)
    late = [True]

    def not_yet(request: RemotingCommand, answer: RemotingCommand) -> RemotingCommand:
        if request.code != PullMessage.CODE or not late:
            return answer
        late.pop()
        return replace(answer, code=ResponseCode.PULL_NOT_FOUND, body=b"")

    bench.cluster.broker("broker-a").tamper = not_yet
    assert bench.offsets.at({queue: 1 << 50}) == {queue: 5}


def test_a_right_guess_costs_one_pull(bench: Bench) -> None:
    queue, broker = bench.queues[0], bench.cluster.broker("broker-a")
    for number in range(200):
        bench.cluster.append("orders", queue.partition, [b"x"], store_ms=1000 + 10 * number)
    assert bench.offsets.at({queue: 1000 + 10 * 77}) == {queue: 77}
    assert broker.counts()[PullMessage.CODE] == 1


def test_a_broker_that_answers_any_offset_for_a_time(bench: Bench) -> None:
    queue = bench.queues[0]
    for number in range(400):
        bench.cluster.append("orders", queue.partition, [b"x"], store_ms=1000 + 10 * number)
    for lie in ("0", "-1", "399", "400", "9999999", "12"):
        bench.cluster.broker("broker-a").tamper = lambda request, answer, lie=lie: (  # type: ignore[misc]
            request.reply(ext={"offset": lie}) if request.code == 29 else answer
        )
        assert bench.offsets.at({queue: 1000 + 10 * 250 - 5}) == {queue: 250}


@pytest.mark.parametrize("ext", [{}, {"offset": "many"}, {"offset": str(1 << 70)}])
def test_answers_that_no_broker_gives(bench: Bench, ext: dict[str, str]) -> None:
    bench.cluster.broker("broker-a").tamper = lambda request, answer: request.reply(ext=ext)
    with pytest.raises(ProtocolError, match="offset"):
        bench.offsets.ranges(bench.queues)


KEYS = Credentials("key", "a secret", "a token")


@pytest.mark.parametrize("is_v5", [False, True])
def test_accounts(is_v5: bool) -> None:
    with ScriptedCluster(is_v5=is_v5) as cluster:
        broker = cluster.broker()
        broker.credentials = KEYS
        right = Bench(cluster, KEYS)
        assert len(right.offsets.ranges(right.queues)) == 2
        right.offsets.commit("billing", {right.queues[0]: 1})
        for keys in (None, Credentials("key", "wrong"), Credentials("other", "a secret")):
            wrong = Bench(cluster, keys)
            with pytest.raises(AccessDenied) as caught:
                wrong.offsets.ranges(wrong.queues)
            assert caught.value.code == (16 if is_v5 else 1)
            assert "check accessKey and secretKey" in str(caught.value)
            assert "secret" not in str(caught.value).replace("secretKey", "")
            wrong.pool.close()
        broker.denied = frozenset({GetMinOffset.CODE})
        with pytest.raises(AccessDenied, match="SUB and GET on the topic and SUB on the group"):
            right.offsets.ranges(right.queues)
        right.pool.close()


def test_secrets_are_not_shown() -> None:
    pool = SessionPool(credentials=KEYS)
    for shown in (repr(KEYS), str(KEYS), repr(pool)):
        assert "a secret" not in shown
        assert "a token" not in shown


def test_another_refusal_is_an_error(bench: Bench) -> None:
    bench.cluster.broker("broker-a").refuse(UpdateConsumerOffset.CODE, 26, "subscription group not exist")
    with pytest.raises(RequestRefused, match=r"SUBSCRIPTION_GROUP_NOT_EXIST \(26\): subscription group not exist"):
        bench.offsets.commit("billing", {bench.queues[0]: 1})
