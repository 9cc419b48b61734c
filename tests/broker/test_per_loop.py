"""Each event loop has one object of each class, and no object keeps a loop alive."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest
from metaq_broker.loop_step import LoopStep
from metaq_broker.per_loop import PerLoop
from metaq_broker.serve.fair_queue import FairQueue


@pytest.mark.parametrize("kind", [LoopStep, FairQueue])
def test_each_loop_has_one_and_keeps_no_other_alive(kind: type[PerLoop]) -> None:
    loop, other = asyncio.new_event_loop(), asyncio.new_event_loop()
    assert type(kind.of(loop)) is kind
    assert kind.of(loop) is kind.of(loop) is not kind.of(other)
    for each in (loop, other):
        each.close()
    gone = weakref.ref(loop)
    del loop, other, each
    gc.collect()
    assert gone() is None


def test_each_class_has_one() -> None:
    loop = asyncio.new_event_loop()
    assert type(LoopStep.of(loop)) is LoopStep
    assert type(FairQueue.of(loop)) is FairQueue
    loop.close()
