"""Key-value pairs of a broker's own name server: they are part of its state."""

from __future__ import annotations

import asyncio
from pathlib import Path

from manual_loop import Steps
from metaq_broker.log.files.files import Files
from metaq_broker.log.state.state_table import CommitDriver, LoopDriver, StateTable
from metaq_broker.rocketmq.kept_key_values import KEY, KeptKeyValues
from metaq_broker.rocketmq.nameserver.key_values import Change, KeyValues
from waiting import in_loop, until


class Life:
    """One life of a broker: its state, and the pairs in it."""

    def __init__(self, folder: Path, bytes_max: int = 1 << 20, driver: CommitDriver | None = None) -> None:
        driver = driver or LoopDriver()
        self.state = StateTable.open(Files(), folder / "rocketmq-state", driver, bytes_max=bytes_max)
        self.pairs = KeptKeyValues(self.state, Files(), folder / "kv.json")
        self.pairs.open()

    async def set(self, key: str, value: str | None) -> str | None:
        return await changed(self.pairs, key, value)

    async def close(self) -> None:
        await self.pairs.close()
        self.state.close()


async def changed(pairs: KeyValues, key: str, value: str | None) -> str | None:
    """Change a pair; return what is answered once that is kept, or refused."""
    answer: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
    pairs.change(Change("n", key, value, answer.set_result))
    return await answer


@in_loop
async def test_pairs_are_in_the_state(tmp_path: Path) -> None:
    life = Life(tmp_path)
    assert await life.set("a", "1") is None
    assert await life.set("b", "2") is None
    assert await life.set("a", None) is None
    await life.close()
    assert not (tmp_path / "kv.json").exists()
    life = Life(tmp_path)
    assert (life.pairs.namespace("n"), life.pairs.get("n", "b")) == ({"b": "2"}, "2")
    await life.close()


@in_loop
async def test_the_file_of_an_earlier_version_is_taken_over_once(tmp_path: Path) -> None:
    earlier = KeyValues(Files(), tmp_path / "kv.json")
    earlier.open()
    assert await changed(earlier, "a", "1") is None
    await earlier.close()
    life = Life(tmp_path)
    assert life.pairs.get("n", "a") == "1"
    await life.close()
    life = Life(tmp_path)
    assert await life.set("a", None) is None
    await life.close()
    life = Life(tmp_path)
    assert life.pairs.namespace("n") == {}
    await life.close()


@in_loop
async def test_what_the_state_has_no_space_for_is_refused(tmp_path: Path) -> None:
    life = Life(tmp_path, bytes_max=10_000)
    assert await life.set("a", "1") is None
    refused = await life.set("b", "x" * 20_000)
    assert refused is not None
    assert refused.startswith("key-value pairs cannot be kept: no space for 'name-server/pairs'")
    assert await life.set("c", "3") is None
    await life.close()
    life = Life(tmp_path)
    assert life.pairs.namespace("n") == {"a": "1", "c": "3"}
    await life.close()


@in_loop
async def test_a_stop_does_not_wait_for_a_change(tmp_path: Path) -> None:
    """The state is closed after it; in a pair, the other member may be away for long."""
    life = Life(tmp_path, driver=Steps())  # it writes nothing by itself
    answers: list[str | None] = []
    life.pairs.change(Change("n", "a", "1", answers.append))
    await until(lambda: life.state.get(KEY) is not None, "the change")
    await life.close()
    assert answers == []
