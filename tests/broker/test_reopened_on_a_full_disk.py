"""A member of a pair that may not go on is opened again in its process, also when its disk is full for a while."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from metaq_broker import process
from metaq_broker.start_errors import StartFailed


@dataclass
class System:
    host_name: str = "127.0.0.1"
    server_port: int = 8123


@dataclass
class Config:
    system: System


class Opened:
    """Stands for brokers: ``failures`` are the errors of the openings, in order; the one after them stops all."""

    failures: ClassVar[list[Exception | None]] = []
    openings: ClassVar[int] = 0
    closings: ClassVar[int] = 0

    def __init__(self, config: Any, file: None, stop: Callable[[], None], again: Callable[[str], None]) -> None:
        self.config, self.port, self._stop, self._again = config, 8123, stop, again

    async def open(self) -> None:
        number = Opened.openings
        Opened.openings += 1
        if number < len(Opened.failures):
            if (failure := Opened.failures[number]) is not None:
                raise failure
            self._again("it was replaced")
        else:
            self._stop()

    async def serve(self) -> None: ...

    def startup_summary(self) -> dict[str, object]:
        return {}

    async def close(self) -> None:
        Opened.closings += 1


@pytest.fixture(autouse=True)
def replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "Broker", Opened)
    monkeypatch.setattr(process, "FULL_PAUSE_S", 0.01)
    for name in ("_react_to_signals", "_tell_ready"):
        monkeypatch.setattr(process, name, lambda *_: None)
    monkeypatch.setattr(Opened, "openings", 0)
    monkeypatch.setattr(Opened, "closings", 0)


def serve(*failures: Exception | None) -> SimpleNamespace:
    Opened.failures = list(failures)
    asyncio.run(process._serve(Config(System()), lambda port: None, None))  # type: ignore[arg-type]
    return SimpleNamespace(openings=Opened.openings, closings=Opened.closings)


def full(cause: int = errno.ENOSPC) -> StartFailed:
    error = StartFailed("the data folder cannot be used")
    error.__cause__ = OSError(cause, "no space")
    return error


def test_it_is_tried_until_there_is_space() -> None:
    found = serve(None, full(), OSError(errno.ENOSPC, "no space"), full(errno.EDQUOT))
    assert (found.openings, found.closings) == (5, 5)


@pytest.mark.parametrize("failures", [(full(),), (None, full(errno.EIO)), (None, StartFailed("another broker's"))])
def test_other_errors_and_the_first_start_end_the_process(failures: tuple[Exception | None, ...]) -> None:
    with pytest.raises(StartFailed):
        serve(*failures)
    assert Opened.closings == Opened.openings == len(failures)
