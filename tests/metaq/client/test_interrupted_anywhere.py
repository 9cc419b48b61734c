"""Ctrl-C at every single step of a consumer's own code: nothing is skipped, and only what was in hand is repeated."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType

import pytest
from examples import LONG
from fix_broker import wait_until
from fix_client import P0, Setting, end_of

import metaq.client.groups
from metaq.client.group_consumer import GroupConsumer
from metaq.client.groups.deliveries import Delivery

FOLDER = str(Path(metaq.client.groups.__file__).parent)
DATA = [b"%d" % number for number in range(6)]
AT_ONCE = 3


class CtrlC:
    """Raises ``KeyboardInterrupt`` at the step with this number of this thread in the folder.

    A step is where Python looks for signals: behind a call of a function in C, and at the begin of one in Python.
    """

    def __init__(self, number: int) -> None:
        self._left = number
        self.was_raised = False

    def __enter__(self) -> CtrlC:
        sys.setprofile(self._step)
        return self

    def __exit__(self, *ignored: object) -> None:
        sys.setprofile(None)

    def _step(self, frame: FrameType, event: str, argument: object) -> None:
        if event not in ("call", "c_return") or not frame.f_code.co_filename.startswith(FOLDER):
            return
        self._left -= 1
        if self._left == 0:
            self.was_raised = True
            sys.setprofile(None)
            raise KeyboardInterrupt


class Reading:
    """Reads in one of three ways until the last message."""

    def __init__(self, consumer: GroupConsumer, *, acks: bool) -> None:
        self._consumer, self._acks, self.seen = consumer, acks, list[bytes]()

    @property
    def is_done(self) -> bool:
        return self.seen[-1:] == DATA[-1:]

    def _note(self, message: Delivery) -> None:
        self.seen.append(message.data)

    def run(self) -> None:
        def handle(message: Delivery) -> None:
            self._note(message)
            if self._acks:
                message.ack()
            if self.is_done:
                self._consumer.stop()

        self._consumer.run(handle)

    def fetch(self) -> None:
        while not self.is_done:
            for message in self._consumer.fetch(AT_ONCE, timeout=10):
                self._note(message)

    def iterate(self) -> None:
        for message in self._consumer:
            self._note(message)
            if self.is_done:
                break


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of generators that are dropped
@pytest.mark.parametrize("auto_ack", [True, False])
@pytest.mark.parametrize(("way", "in_hand_max"), [(Reading.run, 1), (Reading.fetch, AT_ONCE), (Reading.iterate, 1)])
def test_ctrl_c_at_any_step_skips_nothing(
    setting: Setting, way: Callable[[Reading], None], in_hand_max: int, auto_ack: bool
) -> None:
    setting.send(*(data.decode() for data in DATA))
    for number in itertools.count(1, 1 if LONG else 4):
        with setting.consumer(group=f"g{number}", auto_ack=auto_ack) as consumer:
            consumer._require_usable()
            wait_until(lambda: len(consumer._state._order) > 0, "messages are fetched")
            reading, ctrl_c = Reading(consumer, acks=not auto_ack), CtrlC(number)
            with suppress(KeyboardInterrupt), ctrl_c:
                way(reading)
            was_in_hand = reading.is_done  # then the last message is, or may be, not settled
            if not was_in_hand:
                way(reading)
            consumer.commit()
            where = f"at step {number}"
            assert list(dict.fromkeys(reading.seen)) == DATA, where
            assert len(reading.seen) - len(DATA) <= in_hand_max, where
            if not was_in_hand:
                assert consumer.position(P0) == end_of(len(DATA), 1), where
        if not ctrl_c.was_raised:
            break
    assert number > 100
