"""Pulls with a condition in SQL92, which the pull says or a heartbeat said; answered at once or held."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest
from metaq_broker.config.rocketmq import RocketmqConfig
from metaq_broker.frontends.remoting import filters
from metaq_broker.frontends.remoting.compiled_records import RECORDS
from metaq_broker.frontends.remoting.dispatcher import Call
from metaq_broker.frontends.remoting.filters import LOOKED_AT_MAX, filter_checker
from metaq_broker.frontends.remoting.members import MemberRequests
from metaq_broker.frontends.remoting.pulls import LOOKS_MAX, GroupState, Pulls
from metaq_broker.frontends.remoting.waiting_pulls import WaitingPulls
from metaq_broker.groups.group_offsets import GroupOffsets
from metaq_broker.groups.queue_locks import QueueLocks
from remoting_brokers import FakeSession, WaitingBroker, play
from remoting_headers import pull_header
from waiting import until

from metaq.formats.rocketmq.records import read_records
from metaq.protocols.remoting.bodies.groups import ConsumerData, HeartbeatData, SubscriptionData
from metaq.protocols.remoting.codes import ResponseCode
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers import to_request
from metaq.protocols.remoting.headers.clients import HeartBeat
from metaq.protocols.remoting.headers.pulls import SUBSCRIPTION, SUSPEND

SQL = "price > 10 AND color IN ('red', 'blue')"


class Asked:
    """A broker that carries out pulls and heartbeats; ``t`` is its topic."""

    def __init__(self, broker: WaitingBroker) -> None:
        config = cast(RocketmqConfig, broker.engine.config.rocketmq)
        self.broker, self.session = broker, FakeSession()
        self.held = WaitingPulls(broker.store, 100, 100)
        groups = GroupState(broker.groups, broker.members, GroupOffsets(broker.state))
        Pulls(broker.store, broker.topics, groups, config, self.held).add_to(broker.dispatcher)
        check = filter_checker(config.has_conditions)
        locks = QueueLocks(broker.clock.monotonic)
        MemberRequests(broker.members, broker.groups, locks, broker.topics, check).mount(broker.dispatcher)

    def post(self, command: RemotingCommand) -> None:
        self.broker.dispatcher.carry_out(Call(command, cast("Any", self.session)))

    async def answer(self, number: int = 0) -> RemotingCommand:
        await until(lambda: len(self.session.responses) > number)
        found = self.session.responses[number]
        assert found is not None
        return found

    async def pull(self, **changed: object) -> RemotingCommand:
        number = len(self.session.responses)
        self.post(pull(**changed))
        return await self.answer(number)

    def subscribe(self, text: str, kind: str = "SQL92", version: int = 1) -> None:
        subscription = SubscriptionData(topic="t", sub_string=text, expression_type=kind, sub_version=version)
        data = ConsumerData(group_name="g", subscription_data_set=(subscription,))
        body = HeartbeatData(client_id="1", consumer_data_set=(data,)).to_json()
        self.post(to_request(HeartBeat(), body))
        response = self.session.responses.pop()
        assert response is not None
        assert response.code == 0, "a heartbeat is taken whatever it says, as RocketMQ does"

    async def send(self, *prices: int, color: str = "red") -> None:
        await asyncio.gather(
            *(self.broker.stored(b"%d" % price, {"price": str(price), "color": color}) for price in prices)
        )


def pull(offset: int = 0, wait_ms: int = 0, text: str | None = SQL, kind: str = "SQL92") -> RemotingCommand:
    """``text``: ``None`` = what the group's heartbeat said."""
    header = pull_header(
        offset,
        consumer_group="g",
        sys_flag=(0 if text is None else SUBSCRIPTION) | (SUSPEND if wait_ms else 0),
        suspend_timeout_millis=wait_ms,
        subscription=text,
        expression_type=None if text is None else kind,
    )
    return to_request(header)


def bodies(answer: RemotingCommand) -> list[bytes]:
    assert answer.code == 0, answer.remark
    return [record.body for record in read_records(answer.body)]


def run(folder: Path, scenario: Callable[[Asked], Awaitable[None]], settings: str = "") -> None:
    play(folder, lambda broker: scenario(Asked(broker)), more=f"[rocketmq]\nenabled=true\n{settings}")


@pytest.mark.parametrize("loop", ["plain", "compiled"])
def test_messages_for_which_the_condition_is_true(tmp_path: Path, loop: str) -> None:
    if loop == "compiled":
        RECORDS.load()
        assert RECORDS.compiled

    async def scenario(asked: Asked) -> None:
        await asked.send(5, 15, 25)
        await asked.send(30, color="green")
        await asked.broker.stored(b"without", {"color": "red"})
        await asked.broker.stored(b"no number", {"color": "red", "price": "much"})
        found = await asked.pull()
        assert sorted(bodies(found)) == [b"15", b"25"]
        assert found.ext["nextBeginOffset"] == found.ext["maxOffset"] == "6"
        none = await asked.pull(offset=3)
        assert (none.code, none.remark, none.ext["nextBeginOffset"]) == (20, "NO_MATCHED_MESSAGE", "6")
        assert len(bodies(await asked.pull(text="*", kind="TAG"))) == 6

    run(tmp_path, scenario)


def test_a_waiting_pull_is_answered_by_a_message_that_matches(tmp_path: Path) -> None:
    async def scenario(asked: Asked) -> None:
        await asked.send(1)
        asked.post(pull(offset=1, wait_ms=20_000))
        await asked.send(2, 3)
        await asked.send(99, color="green")
        await asyncio.sleep(0)
        assert asked.session.responses == []
        await asked.send(40)
        found = await asked.answer()
        assert (bodies(found), found.ext["nextBeginOffset"]) == ([b"40"], "5")
        assert asked.held.held == 0

    run(tmp_path, scenario)


def test_a_waiting_pull_whose_time_is_up_goes_on_behind_what_did_not_match(tmp_path: Path) -> None:
    async def scenario(asked: Asked) -> None:
        await asked.send(1)
        asked.post(pull(offset=1, wait_ms=100))
        await asked.send(2, 3)
        late = await asked.answer()
        assert (late.code, late.remark, late.ext["nextBeginOffset"]) == (20, "NO_MATCHED_MESSAGE", "3")
        nothing = await asked.pull(offset=3, wait_ms=50)
        assert (nothing.code, nothing.ext["nextBeginOffset"]) == (19, "3")

    run(tmp_path, scenario)


def test_a_woken_pull_looks_at_so_many_messages_and_says_how_far_it_got(tmp_path: Path) -> None:
    async def scenario(asked: Asked) -> None:
        await asked.send(1)
        long = SQL + " OR a = 1" * 200
        asked.post(pull(offset=1, wait_ms=20_000, text=long))
        await asked.send(*[2] * 400)
        found = await asked.answer()
        reached = int(found.ext["nextBeginOffset"])
        assert found.code == 20
        assert LOOKS_MAX < reached < 400 < LOOKED_AT_MAX
        rest = await asked.pull(offset=reached, text=SQL)
        assert (rest.code, rest.ext["nextBeginOffset"]) == (20, "401")

    run(tmp_path, scenario)


def test_what_a_heartbeat_says_is_compiled_and_a_wrong_condition_is_refused(tmp_path: Path) -> None:
    async def scenario(asked: Asked) -> None:
        await asked.send(5, 15)
        assert (await asked.pull(text=None)).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
        asked.subscribe("price > 10", version=1)
        assert bodies(await asked.pull(text=None)) == [b"15"]
        asked.subscribe("price < 10", version=2)
        assert bodies(await asked.pull(text=None)) == [b"5"]
        asked.subscribe("price <", version=3)
        refused = await asked.pull(text=None)
        assert refused.code == ResponseCode.FILTER_DATA_NOT_EXIST
        assert refused.ext == {}
        assert "character 8: expected a property, a text or a number" in (refused.remark or "")
        asked.subscribe("", version=4)
        assert (await asked.pull(text=None)).code == ResponseCode.FILTER_DATA_NOT_EXIST
        asked.subscribe("x", "JUNK", version=5)
        assert (await asked.pull(text=None)).code == 1

    run(tmp_path, scenario)


@pytest.mark.parametrize("text", ["price >", "", "price LIKE 'x'"])
def test_a_pull_with_a_wrong_condition_is_refused(tmp_path: Path, text: str) -> None:
    async def scenario(asked: Asked) -> None:
        await asked.send(5)
        for wait_ms in (0, 20_000):
            assert (await asked.pull(text=text, wait_ms=wait_ms)).code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        assert asked.held.held == 0

    run(tmp_path, scenario)


def test_a_broker_without_conditions(tmp_path: Path) -> None:
    async def scenario(asked: Asked) -> None:
        await asked.send(15)
        text = "The broker does not support consumer to filter message by SQL92"
        asked.subscribe(SQL)
        for answer in (await asked.pull(), await asked.pull(text=None)):
            assert (answer.code, answer.remark) == (1, text)

    run(tmp_path, scenario, "enablePropertyFilter=false\n")


def test_long_subscriptions_take_no_memory(tmp_path: Path) -> None:
    """Whatever a client asks for: those of pulls are no longer than those of heartbeats, and long ones are not kept."""

    async def scenario(asked: Asked) -> None:
        await asked.broker.stored(b"tagged", {"TAGS": "b"})
        kept = filters._kept_tags.cache_info().currsize
        long = " || ".join(("a" * 300, "b"))
        assert bodies(await asked.pull(text=long, kind="TAG")) == [b"tagged"]
        assert filters._kept_tags.cache_info().currsize == kept
        refused = await asked.pull(text="a" * 1025, kind="TAG")
        assert (refused.code, refused.remark) == (23, "parse the consumer's subscription failed: too long")

    run(tmp_path, scenario, "maxSubscriptionBytes=1024\n")


def test_a_large_pull_that_is_forgotten_with_its_connection_counts_no_more(tmp_path: Path) -> None:
    async def scenario(asked: Asked) -> None:
        await asked.send(1)
        asked.post(pull(offset=1, wait_ms=20_000))
        asked.broker.dispatcher.lost(cast("Any", asked.session))
        assert (asked.held.held, asked.session.responses) == (0, [None])

    run(tmp_path, scenario)
