"""The channel of a remoting connection: numbers, deadlines, limits, and what becomes of each response."""

from __future__ import annotations

import random

import pytest
from examples import in_one_test

from metaq.errors import TooManyInFlight
from metaq.protocols.remoting.channel import (
    Channel,
    ChannelLimits,
    Expired,
    InFlight,
    ReceivedRequest,
    ReceivedResponse,
)
from metaq.protocols.remoting.command import ONEWAY_FLAG, RemotingCommand, request


def channel(requests_max: int = 10, oneways_max: int = 10) -> Channel[str]:
    return Channel("peer", ChannelLimits(requests_max, oneways_max))


def test_a_response_finds_its_request_in_any_order() -> None:
    chan = channel()
    one, two = chan.start(request(11), 10.0, "one"), chan.start(request(30), 10.0, "two")
    assert one.opaque != two.opaque
    assert not one.is_response
    assert chan.received(two.reply(19)) == ReceivedResponse("two", two, two.reply(19))
    assert chan.received(one.reply()) == ReceivedResponse("one", one, one.reply())
    assert chan.in_flight == 0


def test_the_two_directions_have_numbers_of_their_own() -> None:
    chan = channel()
    ours = chan.start(request(11), 10.0, "ours")
    theirs = request(40, opaque=ours.opaque)
    assert chan.received(theirs) == ReceivedRequest(theirs)
    assert chan.in_flight == 1
    assert isinstance(chan.received(ours.reply()), ReceivedResponse)


@pytest.mark.parametrize("flag", [0, 1, 2, 3])
def test_what_is_sent_is_never_marked_as_a_response(flag: int) -> None:
    chan = channel()
    assert chan.start(RemotingCommand(11, flag=flag), 1.0, "x").flag == 0
    assert chan.start_oneway(RemotingCommand(15, flag=flag)).flag == ONEWAY_FLAG


def test_a_request_expires_once_and_its_response_is_late() -> None:
    chan = channel()
    first, second = chan.start(request(11), 5.0, "first"), chan.start(request(11), 7.0, "second")
    assert chan.next_deadline == 5.0
    assert chan.expire(4.999) == []
    assert chan.expire(5.0) == [Expired("first", first)]
    assert chan.expire(6.0) == []
    assert chan.next_deadline == 7.0
    assert chan.received(first.reply()) is None
    assert chan.received(second.reply()) is not None
    assert (chan.late_responses, chan.next_deadline, chan.in_flight) == (1, None, 0)


def test_repeated_and_unasked_responses_are_counted_and_dropped() -> None:
    chan = channel()
    sent = chan.start(request(11), 5.0, "x")
    assert chan.received(sent.reply()) is not None
    assert chan.received(sent.reply()) is None
    assert chan.received(request(11, opaque=999).reply()) is None
    assert chan.late_responses == 2


def test_a_forgotten_request_makes_way_for_another() -> None:
    chan = channel(requests_max=1)
    sent = chan.start(request(11), 5.0, "x")
    with pytest.raises(TooManyInFlight, match="peer: request not sent, 1 are in flight already, which is the limit"):
        chan.start(request(11), 5.0, "y")
    assert chan.forget(sent.opaque)
    assert not chan.forget(sent.opaque)
    chan.start(request(11), 5.0, "y")


def test_requests_and_oneways_are_limited_apart() -> None:
    chan = channel(requests_max=1, oneways_max=2)
    chan.start(request(11), 5.0, "x")
    chan.start_oneway(request(15))
    chan.start_oneway(request(15))
    with pytest.raises(TooManyInFlight, match="oneway not sent, 2 are"):
        chan.start_oneway(request(15))
    chan.oneway_sent()
    chan.start_oneway(request(15))
    assert (chan.in_flight, chan.oneways_in_flight) == (1, 2)


def test_channels_can_share_a_total() -> None:
    total = InFlight("request", 3)
    one, two = (Channel[str](name, ChannelLimits(2, 1), total_requests=total) for name in ("one", "two"))
    one.start(request(11), 5.0, "a")
    one.start(request(11), 5.0, "b")
    sent = two.start(request(11), 5.0, "c")
    with pytest.raises(TooManyInFlight, match="two: request not sent, 3 are"):
        two.start(request(11), 5.0, "d")
    assert (two.in_flight, total.count) == (1, 3)
    two.received(sent.reply())
    one.expire(5.0)
    assert total.count == 0


def test_closing_returns_what_nobody_will_answer() -> None:
    chan = channel(requests_max=2)
    sent = [chan.start(request(11), 5.0, "a"), chan.start(request(11), 6.0, "b")]
    assert [pending.owner for pending in chan.close()] == ["a", "b"]
    assert chan.close() == []
    assert chan.received(sent[0].reply()) is None
    assert (chan.in_flight, chan.next_deadline) == (0, None)


def test_a_number_that_still_waits_is_not_given_again() -> None:
    chan = channel()
    waiting = chan.start(request(11), 5.0, "a")
    chan._last_opaque = 0x7FFFFFFF
    numbers = [chan.start(request(11), 5.0, "b").opaque for _ in range(3)]
    assert waiting.opaque == 1
    assert numbers == [0, 2, 3]


def test_deadlines_of_ended_requests_do_not_pile_up() -> None:
    chan = channel(requests_max=1000)
    for _ in range(5000):
        chan.received(chan.start(request(11), 1e9, "x").reply())
    assert len(chan._deadlines) < 100


@in_one_test("seed", range(20))
def test_any_course_of_events_ends_every_request_exactly_once(seed: int) -> None:
    dice = random.Random(seed)
    chan, now = channel(requests_max=30), 0.0
    started: list[RemotingCommand] = []
    ended: list[int] = []
    for _ in range(2000):
        now += dice.random()
        match dice.randrange(4):
            case 0 | 1 if chan.in_flight < 30:
                started.append(chan.start(request(11), now + dice.randrange(1, 40), "x"))
            case 2 if started:
                event = chan.received(dice.choice(started).reply())
                if isinstance(event, ReceivedResponse):
                    ended.append(event.request.opaque)
            case 3:
                ended += [expired.request.opaque for expired in chan.expire(now)]
    ended += [pending.request.opaque for pending in chan.close()]
    assert sorted(ended) == sorted(each.opaque for each in started)


@pytest.mark.parametrize("field", ["requests_max", "oneways_max"])
def test_limits_are_at_least_one(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field}=0: expected 1 or more"):
        ChannelLimits(**{field: 0})
