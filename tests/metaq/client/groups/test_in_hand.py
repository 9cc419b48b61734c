"""What is in hand, counted by ranges, beside a model that keeps a list of single messages. Pure."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from metaq.client.groups.deliveries import Delivery, HandedOut, ReadEpoch, deliveries_in
from metaq.client.groups.in_hand import InHand, Span
from metaq.discovery.zk_layout import GroupOffset
from metaq.formats.frames import encode_frame
from metaq.model import Partition, TopicPartition


class Nobody:
    def acknowledge(self, delivery: HandedOut) -> None:
        raise AssertionError


EPOCH = ReadEpoch(TopicPartition("t", Partition(0, 0)), 1, Nobody())
FRAME_BYTES = len(encode_frame(0, 0, b"x"))


class Model:
    """Every message that was handed out, and whether it is settled."""

    def __init__(self) -> None:
        self.taken: list[Delivery] = []
        self.settled: set[int] = set()

    @property
    def in_hand(self) -> list[Delivery]:
        offsets = [one.offset for one in self.taken]
        first = next((at for at, offset in enumerate(offsets) if offset not in self.settled), len(offsets))
        return self.taken[first:]

    @property
    def position(self) -> GroupOffset:
        count = len(self.taken) - len(self.in_hand)
        return GroupOffset(count * FRAME_BYTES, self.taken[count - 1].message_id if count else -1)


STEPS = st.lists(
    st.tuples(st.sampled_from(["take", "settle", "settle span", "stream"]), st.integers(0, 7), st.integers(1, 7)),
    max_size=60,
)


@given(STEPS, st.integers(1, 9))
def test_positions_are_those_of_single_messages(steps: list[tuple[str, int, int]], block: int) -> None:
    run = b"".join(encode_frame(number, 0, b"x") for number in range(500))
    hand, model, at = InHand[Delivery](GroupOffset(0)), Model(), 0
    spans: list[Span] = []
    for step, which, count in steps:
        if not hand.has_more:
            messages, end = deliveries_in(run, at, 0, block, EPOCH)
            hand.add(messages, end)
            at = end
        if step == "take":
            found = hand.take(count)
            model.taken += found
            spans.append(Span(found[0], found[-1], len(found)))
        elif step == "settle" and model.taken:
            one = model.taken[which % len(model.taken)]
            hand.settle(one.offset)
            model.settled.add(one.offset)
        elif step == "settle span" and spans:
            span = spans.pop(which % len(spans))
            hand.settle_span(span)
            model.settled |= set(range(span.first.offset, span.last.offset + 1, FRAME_BYTES))
        elif step == "stream" and model.taken and (streamed := hand.stream(model.taken[-1])) is not None:
            for message in streamed.messages[streamed.taken : streamed.taken + count]:
                model.settled.add(model.taken[-1].offset)
                streamed.taken += 1
                model.taken.append(message)
                assert hand.position == model.position
                assert hand.count == 1
            hand.end_stream()
        assert (hand.position, hand.count) == (model.position, len(model.in_hand))


def test_what_is_left_out_moves_the_position_when_nothing_is_before_it() -> None:
    run = b"".join(encode_frame(number, 0, b"x") for number in range(3))
    hand = InHand[Delivery](GroupOffset(0))
    hand.add(*deliveries_in(run, 0, 0, 9, EPOCH))
    hand.leave_out(lambda message_id: True)
    assert (hand.has_more, hand.position.offset) == (False, len(run))
