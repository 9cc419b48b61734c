"""The start of the master of a pair: who finds it, finds it in sync with its slave, if the slave is there."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
from metaq_broker.replication.partition_sender import PartitionSender
from replicated import client, configured, put, running, samsa
from waiting import in_loop


@in_loop
async def starts(folder: Path) -> None:
    """Start a slave and its master, twice, and put at once."""
    for _ in range(2):
        async with (
            running(configured(folder / "s", role="[gregor]")) as slave,
            running(configured(folder / "m", role=samsa(slave))) as master,
            client(master) as producer,
        ):
            assert (await put(producer, b"at once"))[0] == 200


def test_a_master_that_is_ready_takes_messages(tmp_path: Path) -> None:
    starts(tmp_path)


def test_the_same_with_a_java_slave(tmp_path: Path, plain_brokers: None) -> None:
    starts(tmp_path)


@in_loop
async def test_a_silent_slave_is_waited_for_no_longer_than_an_answer(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        role = samsa(silent.getsockname()[1], 100)
        async with running(configured(tmp_path / "m", role=role)) as master, client(master) as producer:
            code, text = await put(producer, b"x")
            assert (code, "no answer within 0.1 s" in text) == (500, True)


@in_loop
async def test_a_copy_that_takes_long_does_not_hold_up_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied, send_missing = asyncio.Event(), PartitionSender.send_missing

    async def slow(sender: PartitionSender, *arguments: object) -> None:
        await copied.wait()
        await send_missing(sender, *arguments)  # type: ignore[arg-type]

    async with running(configured(tmp_path / "s", role="[gregor]")) as slave:
        async with running(configured(tmp_path / "m", role=samsa(slave))) as master, client(master) as producer:
            assert (await put(producer, b"first"))[0] == 200
        monkeypatch.setattr(PartitionSender, "send_missing", slow)
        async with running(configured(tmp_path / "m", role=samsa(slave, 100))) as master:
            assert master.replication.trouble == "not connected yet"
            copied.set()
