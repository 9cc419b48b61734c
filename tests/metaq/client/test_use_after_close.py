"""What a client has made raises when it is used after the client was closed, or after it was closed itself."""

from __future__ import annotations

from collections.abc import Callable
from inspect import isawaitable
from pathlib import Path
from typing import Any

import pytest
from fix_broker import wait_until
from waiting import in_loop

from metaq import AsyncMetaQ, AsyncRocketMQ, MetaQ, RocketMQ
from metaq.backends.rocketmq.half_messages import Outcome
from metaq.model import Partition, TopicPartition, Xid
from metaq.testing.memory_server import MemoryServer

CLOSED = r"(client|producer|consumer|transaction) (is closed|is not open.*|has ended|can only be used inside.*)"
P0 = TopicPartition("orders", Partition(0, 0))
XID = Xid(1, b"g", b"b", "u")

Call = Callable[[Any], Any]


async def opened(made: Any) -> Any:
    """Enter the block of something, whether that is awaited or not."""
    return await made.__aenter__() if hasattr(made, "__aenter__") else made.__enter__()


async def in_metaq(mq: Any, spool: Path) -> dict[str, Any]:
    """One of each that a client of MetaQ's makes."""
    return {
        "client": mq,
        "producer": mq.producer(),
        "ordered": await opened(mq.ordered_producer({"orders": "0:1"}, spool=spool)),
        "transaction": mq.producer().transaction(),
        "branch": mq.xa(b"g", b"b", unique="u"),
        "consumer": mq.consumer("g", ["orders"]),
        "broadcast": mq.broadcast_consumer("g", ["orders"]),
        "browser": mq.browse("orders"),
        "search": mq.search_id("orders", 1),
        "view": mq.cluster,
        **in_threads_only(mq),
    }


def in_threads_only(mq: Any) -> dict[str, Any]:
    """What the clients for asyncio do not have."""
    found = {"checkup": mq.checkup()} if hasattr(mq, "checkup") else {}
    return found | ({"relay": mq.relay, "kept view": mq.cluster_kept(60)} if hasattr(mq, "relay") else {})


async def in_rocketmq(mq: Any, spool: Path) -> dict[str, Any]:
    """One of each that a client of RocketMQ's makes."""
    transactional = await opened(mq.transactional_producer("g", lambda message: Outcome.UNKNOWN))
    return {
        "client": mq,
        "producer": mq.producer(),
        "rocketmq producer": mq.producer(),
        "transactional": transactional,
        "transaction": transactional.transaction(),
        "consumer": mq.consumer("g", ["orders"]),
        "broadcast": mq.broadcast_consumer("g", ["orders"]),
        "browser": mq.browse("orders"),
        "view": mq.cluster,
        "lookup": mq.lookup,
        "topics": mq.topics,
        **in_threads_only(mq),
    }


SENDS: dict[str, Call] = {
    "send": lambda it: it.send("orders", "x"),
    "send_many": lambda it: it.send_many("orders", ["x"]),
    "submit": lambda it: it.submit("orders", "x"),
    "publish": lambda it: it.publish("orders"),
}
ROCKETMQ_SENDS: dict[str, Call] = {
    "send_oneway": lambda it: it.send_oneway("orders", "x"),
    "request": lambda it: it.request("orders", "x"),
    "reply": lambda it: it.reply(None, "x"),
    "recall": lambda it: it.recall("orders", "handle"),
}
READS: dict[str, Call] = {
    "fetch": lambda it: it.fetch(),
    "run": lambda it: it.run(print),
    "iterate": lambda it: first_of(it),
    "commit": lambda it: it.commit(),
    "rollback": lambda it: it.rollback(),
    "seek": lambda it: it.seek(P0, 0),
    "lag": lambda it: it.lag(),
}
MAKES: dict[str, Call] = {
    "producer": lambda it: it.producer(),
    "consumer": lambda it: it.consumer("g", ["orders"]),
    "broadcast_consumer": lambda it: it.broadcast_consumer("g", ["orders"]),
    "browse": lambda it: first_of(it.browse("orders")),
    "parked": lambda it: it.parked("g"),
    "cluster": lambda it: it.cluster.topics(),
}
VIEWS: dict[str, Call] = {
    "brokers": lambda it: it.brokers(),
    "servers": lambda it: it.servers(),
    "topics": lambda it: it.topics(),
    "partitions": lambda it: it.partitions("orders"),
    "writable": lambda it: it.writable("orders"),
    "describe": lambda it: it.describe("orders"),
    "statistics": lambda it: it.statistics(),
    "topic_statistics": lambda it: it.topic_statistics("orders"),
    "offsets_at": lambda it: it.offsets_at("orders", 1),
    "groups": lambda it: it.groups(),
    "lag": lambda it: it.lag("g", ["orders"]),
    "plan_reset": lambda it: it.plan_reset("g", "orders", "earliest"),
}
CALLS: dict[str, dict[str, Call]] = {
    "producer": {**SENDS},
    "ordered": {"send": SENDS["send"], "recover": lambda it: it.recover(0.1)},
    "transaction": {"send": SENDS["send"], "commit": lambda it: it.commit(), "rollback": lambda it: it.rollback()},
    "branch": {"send": SENDS["send"], "prepare": lambda it: it.prepare()},
    "rocketmq producer": ROCKETMQ_SENDS,
    "transactional": {**SENDS, **ROCKETMQ_SENDS, "transaction": lambda it: it.transaction()},
    "consumer": READS,
    "broadcast": READS,
    "browser": {"iterate": lambda it: first_of(it)},
    "search": {"iterate": lambda it: first_of(it)},
    "view": VIEWS,
    "kept view": VIEWS,
    "checkup": {"iterate": lambda it: first_of(it)},
    "relay": {
        "put": lambda it: it.put("orders", 0, 0, b"x"),
        "get": lambda it: it.get("orders", "g", 0, 0, 1000),
        "offset": lambda it: it.offset("orders", "g", 0, 0),
        "stats": lambda it: it.stats(),
    },
    "lookup": {"by_key": lambda it: it.by_key("orders", "k"), "by_id": lambda it: it.by_id("orders", "1" * 32)},
    "topics": {
        "create": lambda it: it.create("orders"),
        "settings": lambda it: it.settings("orders"),
        "delete": lambda it: it.delete("orders"),
    },
}
ONLY_METAQ: dict[str, Call] = {
    **MAKES,
    "ordered_producer": lambda it: it.ordered_producer({"orders": "0:1"}, spool="unused"),
    "xa": lambda it: it.xa(b"g", b"b", unique="u"),
    "prepared": lambda it: it.prepared(),
    "commit": lambda it: it.commit(XID),
    "rollback": lambda it: it.rollback(XID),
    "search_key": lambda it: it.search_key("orders", "k"),
    "search_id": lambda it: it.search_id("orders", 1),
}
CHECKUP: dict[str, Call] = {"checkup": lambda it: it.checkup()}
ONLY_IN_THREADS: dict[str, Call] = {
    **CHECKUP,
    "relay": lambda it: it.relay,
    "cluster_kept": lambda it: it.cluster_kept(60),
}
ONLY_ROCKETMQ: dict[str, Call] = {
    **MAKES,
    "transactional_producer": lambda it: it.transactional_producer("g", lambda message: Outcome.UNKNOWN),
    "lookup": lambda it: it.lookup,
    "topics": lambda it: it.topics,
}


def first_of(messages: Any) -> Any:
    """The first message, or a coroutine that comes to it."""
    return next(iter(messages)) if hasattr(messages, "__iter__") else anext(aiter(messages))


async def outcome_of(it: Any, call: Call) -> None:
    """Carry a call out, whether it is awaited or not."""
    result = call(it)
    if isawaitable(result):
        await result


async def refused(made: dict[str, Any], client_calls: dict[str, Call]) -> list[str]:
    """Every call that did not raise that something is closed."""
    wrong: list[str] = []
    for name, calls in {**CALLS, "client": client_calls}.items():
        for call_name, call in calls.items():
            if name in made:
                try:
                    with pytest.raises(ValueError, match=CLOSED):
                        await outcome_of(made[name], call)
                except (Exception, pytest.fail.Exception) as error:
                    wrong.append(f"{name}.{call_name}: {error!r}"[:300])
    return wrong


@in_loop
async def test_nothing_of_metaq_works_when_the_client_is_closed(metaq_memory: MemoryServer, tmp_path: Path) -> None:
    metaq_memory.client().producer().send("orders", "one")
    mq = MetaQ(metaq_memory.cluster)
    made = await in_metaq(mq, tmp_path / "spool")
    mq.close()
    mq.close()
    assert await refused(made, ONLY_METAQ | ONLY_IN_THREADS) == []


@in_loop
async def test_nothing_of_async_metaq_works_when_the_client_is_closed(
    metaq_memory: MemoryServer, tmp_path: Path
) -> None:
    metaq_memory.client().producer().send("orders", "one")
    mq = AsyncMetaQ(metaq_memory.cluster)
    made = await in_metaq(mq, tmp_path / "spool")
    await mq.close()
    await mq.close()
    assert await refused(made, ONLY_METAQ) == []


@in_loop
async def test_nothing_of_rocketmq_works_when_the_client_is_closed(tmp_path: Path) -> None:
    mq = RocketMQ("127.0.0.1:1")
    made = await in_rocketmq(mq, tmp_path)
    mq.close()
    assert await refused(made, ONLY_ROCKETMQ | CHECKUP) == []


@in_loop
async def test_nothing_of_async_rocketmq_works_when_the_client_is_closed(tmp_path: Path) -> None:
    mq = AsyncRocketMQ("127.0.0.1:1")
    made = await in_rocketmq(mq, tmp_path)
    await mq.close()
    assert await refused(made, ONLY_ROCKETMQ) == []


async def closed(made: Any) -> None:
    """Close something, whether that is awaited or not."""
    if isawaitable(closing := made.close()):
        await closing


@pytest.mark.parametrize("client", [RocketMQ, AsyncRocketMQ])
@in_loop
async def test_what_is_closed_by_itself_in_rocketmq(client: type[RocketMQ | AsyncRocketMQ], tmp_path: Path) -> None:
    mq = client("127.0.0.1:1")
    made = await in_rocketmq(mq, tmp_path)
    closable = ("producer", "rocketmq producer", "transactional", "consumer", "broadcast")
    for name in closable:
        await closed(made[name])
    assert await refused({name: made[name] for name in (*closable, "transaction")}, {}) == []
    await closed(mq)


@pytest.mark.parametrize("client", [MetaQ, RocketMQ])
def test_parked_messages_are_of_this_machine_and_outlast_the_client(client: type[MetaQ | RocketMQ]) -> None:
    with client("127.0.0.1:1") as mq:
        parked, of_consumer = mq.parked("g"), mq.consumer("g", ["orders"]).parked
    assert [list(parked), list(of_consumer)] == [[], []]


@pytest.mark.parametrize("client", [MetaQ, AsyncMetaQ])
@in_loop
async def test_what_is_closed_by_itself_does_not_work_either(
    client: type[MetaQ | AsyncMetaQ], metaq_memory: MemoryServer, tmp_path: Path
) -> None:
    mq = client(metaq_memory.cluster)
    made = await in_metaq(mq, tmp_path / "spool")
    mine = {name: made[name] for name in ("producer", "ordered", "consumer", "broadcast")}
    for one in mine.values():
        await closed(one)
    assert await refused(mine, {}) == []
    await outcome_of(mq, lambda it: it.cluster.topics())
    await closed(mq)


def test_a_client_that_is_closed_takes_its_consumers_out_of_their_groups(metaq_memory: MemoryServer) -> None:
    """As leaving a block by an exception does: what was handed out last comes again."""
    metaq_memory.client().producer().send_many("orders", ["a", "b", "c"], partition=P0.partition)
    mq = MetaQ(metaq_memory.cluster)
    consumer = mq.consumer("g", ["orders"])
    assert [one.data for one in consumer.fetch(1, timeout=30)] == [b"a"]
    assert [one.data for one in consumer.fetch(1, timeout=30)] == [b"b"]
    mq.close()
    assert consumer.assignment == []
    with MetaQ(metaq_memory.cluster) as later, later.consumer("g", ["orders"]) as again:
        assert [one.data for one in again.fetch(timeout=30)] == [b"b", b"c"]


def test_a_transaction_that_is_open_is_not_committed(metaq_memory: MemoryServer) -> None:
    mq = MetaQ(metaq_memory.cluster)
    transaction = mq.producer().transaction()
    transaction.send("orders", "never")
    mq.close()
    with pytest.raises(ValueError, match="closed"):
        transaction.commit()
    wait_until(lambda: list(metaq_memory.client().browse("orders")) == [], "it is rolled back")


def test_a_browser_that_is_suspended_ends(metaq_memory: MemoryServer) -> None:
    metaq_memory.client().producer().send_many("orders", ["a", "b", "c"], partition=P0.partition)
    mq = MetaQ(metaq_memory.cluster)
    messages = iter(mq.browse("orders"))
    assert next(messages).data == b"a"
    mq.close()
    with pytest.raises(ValueError, match="the client is closed"):
        next(messages)


def test_a_consumer_may_commit_in_a_function_called_by_its_close(metaq_memory: MemoryServer) -> None:
    metaq_memory.client().producer().send("orders", "a")
    with metaq_memory.client() as mq:
        consumer = mq.consumer("g", ["orders"], on_revoked=lambda places: consumer.commit())
        assert len(consumer.fetch(timeout=30)) == 1
        consumer.close()
        with pytest.raises(ValueError, match="the consumer is closed"):
            consumer.commit()
