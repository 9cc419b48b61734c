"""A defect that ends background work is in the log before the broker stops, and stops nothing else."""

from __future__ import annotations

import asyncio

import pytest
from metaq_broker.background import begin_work, stop_work
from waiting import in_loop


async def broken() -> None:
    raise ValueError("a defect")


async def endless() -> None:
    await asyncio.Event().wait()


@in_loop
async def test_a_defect_is_logged_at_once_and_not_raised_by_the_stop(caplog: pytest.LogCaptureFixture) -> None:
    task = begin_work(broken(), "a name")
    await asyncio.wait([task])
    await asyncio.sleep(0)
    [logged] = caplog.records
    assert logged.exc_info is not None
    assert (logged.fields, str(logged.exc_info[1])) == ({"work": "a name"}, "a defect")  # type: ignore[attr-defined]
    await stop_work(task)


@in_loop
async def test_work_that_is_stopped_has_ended_and_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    task = begin_work(endless(), "a name")
    await stop_work(task)
    assert task.cancelled()
    assert caplog.records == []
    await stop_work(None)
