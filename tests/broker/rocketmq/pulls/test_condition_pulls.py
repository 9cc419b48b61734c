"""Pulls with a condition in SQL92, which the pull says or a heartbeat said; answered at once or held."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest
from condition_pulls import SQL, Asked, pull
from metaq_broker.rocketmq.messages.compiled_records import RECORDS
from metaq_broker.rocketmq.pulls import filters
from metaq_broker.rocketmq.pulls.filters import LOOKED_AT_MAX
from metaq_broker.rocketmq.pulls.pulls import LOOKS_MAX
from metaq_broker.rocketmq.session import Call
from remoting_brokers import play

from metaq.formats.rocketmq.records import read_records
from metaq.protocols.remoting.codes import ResponseCode
from metaq.protocols.remoting.command import RemotingCommand


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


def test_a_waiting_pull_keeps_nothing_of_its_request_that_may_be_large(tmp_path: Path) -> None:
    async def scenario(asked: Asked) -> None:
        await asked.send(1)
        call = Call(pull(offset=1, wait_ms=20_000).numbered(7), cast(Any, asked.session))
        asked.broker.dispatcher.carry_out(call)
        assert (asked.held.held, call.request.ext, call.request.body) == (1, {}, b"")
        await asked.send(40)
        found = await asked.answer()
        assert (bodies(found), found.opaque) == ([b"40"], 7)

    run(tmp_path, scenario)


def test_a_large_filter_counts_for_several_waiting_pulls(tmp_path: Path) -> None:
    async def scenario(asked: Asked) -> None:
        await asked.send(1)
        tags, long = "||".join(f"t{number}" for number in range(160)), SQL + " OR price > 100" * 130
        for _ in range(4):
            asked.post(pull(offset=1, wait_ms=20_000, text=tags, kind="TAG"))
        for _ in range(4):
            asked.post(pull(offset=1, wait_ms=20_000, text=long))
        assert (asked.held.held, len(asked.session.responses)) == (4 + 2, 2), "of 100, 44 and 2 * 20"
        for _ in range(20):
            asked.post(pull(offset=1, wait_ms=20_000))
        assert (asked.held.held, len(asked.session.responses)) == (6 + 16, 2 + 4)
        asked.held.connection_lost(cast(Any, asked.session))
        assert asked.held.has_space_for(cast(Any, asked.session), 100)

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


def test_a_heartbeats_conditions_are_compiled_and_wrong_ones_refused(tmp_path: Path) -> None:
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
