"""RocketMQ's clients at a synchronous pair: the master serves them, in sync or not; its slave only once promoted."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from metaq_broker.app import Broker
from metaq_broker.log.state.state_records import decode_state
from metaq_broker.operate.config.configuration import BrokerConfig
from metaq_broker.replication import samsa as samsa_module
from metaq_broker.replication.paired_commit import PairedCommit
from metaq_broker.rocketmq.nameserver.app import NameServer
from metaq_broker.rocketmq.nameserver.config import load
from metaq_broker.rocketmq.nameserver.routes import BrokerRegistration
from remoting_headers import send_header
from replicated import client, configured, holding_copies, put, running, samsa, slave_of, until_in_sync, until_same
from request_replay import Asker
from waiting import in_loop, until

from metaq.client.partitioners import fixed
from metaq.client.rocketmq.async_client import AsyncRocketMQ
from metaq.model import Address
from metaq.protocols.remoting.codes import ResponseCode
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers.administration import GetBrokerHaStatus
from metaq.protocols.remoting.headers.fields import Request
from metaq.protocols.remoting.headers.transactions import COMMIT, ROLLBACK, EndTransaction
from metaq.testing.ports import free_port

NAMES = "brokerName=broker-a\nbrokerIP1=127.0.0.1\nmessageDelayLevel=1s\n"
OWN_KEYS = ("copied-from", "state/count")


def front_end(port: int = 0, more: str = "") -> str:
    """Return the section of a server.ini that has a broker serve RocketMQ's clients."""
    return f"[rocketmq]\nenabled=true\nport={port}\n{NAMES}{more}"


def gregor(port: int = 0, *, master: int = 1, rocketmq: int = 0, more: str = "") -> str:
    """Return the sections of a pair's slave."""
    return f"[gregor]\nmaster=127.0.0.1:{master}\n{front_end(rocketmq, more)}"


async def is_open(address: Address) -> bool:
    """Whether somebody listens."""
    try:
        _, writer = await asyncio.open_connection(address.host, address.port)
    except OSError:
        return False
    writer.close()
    return True


def rocketmq_of(broker: Broker) -> Address:
    """Where a broker serves RocketMQ's clients, or would."""
    assert broker.rocketmq is not None
    return broker.rocketmq.address


@asynccontextmanager
async def client_of(*brokers: Broker) -> AsyncIterator[AsyncRocketMQ]:
    async with AsyncRocketMQ(";".join(str(rocketmq_of(broker)) for broker in brokers)) as mq:
        yield mq


async def bodies_of(mq: AsyncRocketMQ, topic: str) -> list[bytes]:
    return [bytes(message.data) async for message in mq.browse(topic)]


async def send(mq: AsyncRocketMQ, topic: str, body: str, delay_level: int = 0) -> None:
    await mq.producer(fixed(0), failover=False).send(topic, body, delay_level=delay_level)


async def answered(broker: Broker, topic: str, properties: str = "") -> RemotingCommand:
    """Return the response to a send."""
    header = send_header(topic=topic, born_timestamp=time.time_ns() // 1_000_000, properties=properties)
    return await asyncio.to_thread(_ask, broker, header, b"no")


async def refusal(broker: Broker, topic: str) -> str:
    """Why a message is not taken; with this code a producer tries another broker."""
    answer = await answered(broker, topic)
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    return answer.remark or ""


def state(folder: Path) -> dict[str, bytes]:
    """What the state file in a broker's folder holds, but for what each broker has for itself."""
    path = folder / "rocketmq-state"
    found = decode_state(path, path.read_bytes()).values if path.exists() else {}
    return {key: value for key, value in found.items() if key not in OWN_KEYS}


async def commit(broker: Broker, topic: str, group: str, offset: int) -> None:
    def ask() -> None:
        with Asker(rocketmq_of(broker)) as asker:
            asker.commit(topic, group, 0, offset)

    await asyncio.to_thread(ask)


async def committed(broker: Broker, topic: str, group: str) -> int:
    def ask() -> int:
        with Asker(rocketmq_of(broker)) as asker:
            return asker.committed(topic, group, 0)

    return await asyncio.to_thread(ask)


def master_config(folder: Path, slave: Broker | int, more: str = "") -> BrokerConfig:
    return configured(folder / "m", role=samsa(slave) + front_end(0, more))


@in_loop
async def test_a_master_serves_and_its_slave_goes_on_when_it_is_promoted(tmp_path: Path) -> None:
    port = free_port()
    config = configured(tmp_path / "s", role=gregor(master=port))
    async with running(config) as slave:
        role = samsa(slave) + front_end()
        async with running(configured(tmp_path / "m", role=role, port=port)) as master, client_of(master) as mq:
            await until_in_sync(master)
            assert master.rocketmq_address is not None
            await mq.cluster.create_topic("orders", 2)
            for number in range(20):
                await send(mq, "orders", f"{number}")
            await send(mq, "orders", "delayed", delay_level=1)
            await commit(master, "orders", "billing", 7)
            found: list[bytes] = []
            while b"delayed" not in found:
                found = await bodies_of(mq, "orders")
            await until_same(tmp_path / "m", tmp_path / "s")
            await until(lambda: bool(state(tmp_path / "m")) and state(tmp_path / "m") == state(tmp_path / "s"), "state")
            assert not await is_open(rocketmq_of(slave))
            assert slave.rocketmq_address is None
        await slave.replication.promote(force=False)
        async with client_of(slave) as mq:
            assert await bodies_of(mq, "orders") == found
            assert await committed(slave, "orders", "billing") == 7
            await send(mq, "orders", "next")
    async with running(config) as slave, client_of(slave) as mq:  # its configuration still calls it a slave
        assert await bodies_of(mq, "orders") == [*found, b"next"]


@in_loop
async def test_without_the_slave_messages_are_read_and_none_is_taken(tmp_path: Path) -> None:
    slave_port = free_port()
    of_slave = configured(tmp_path / "s", role=gregor(), port=slave_port)
    of_master = master_config(tmp_path, slave_port)
    async with running(of_slave) as slave, running(of_master) as master, client_of(master) as mq:
        await until_in_sync(master)
        await send(mq, "orders", "first")
        await send(mq, "orders", "delayed", delay_level=1)
        await slave.close()
        await until(lambda: master.replication.trouble is not None, "the pair to be out of sync")
        assert "Slave is disconnected" in await refusal(master, "orders")
        assert await bodies_of(mq, "orders") == [b"first"]
    async with running(of_master) as master, client_of(master) as mq:  # restarted alone
        assert await bodies_of(mq, "orders") == [b"first"]
        assert "Slave is disconnected" in await refusal(master, "orders")
        async with client(master) as producer:
            assert (await put(producer, b"no"))[0] == 500
        async with running(of_slave):
            await until_in_sync(master)
            await send(mq, "orders", "second")
            while len(found := await bodies_of(mq, "orders")) < 3:
                pass
            assert set(found) == {b"first", b"second", b"delayed"}
            await until_same(tmp_path / "m", tmp_path / "s")


@asynccontextmanager
async def pair_with_a_message(folder: Path) -> AsyncIterator[tuple[Broker, Broker]]:
    """A master and its slave, in sync, with a message of ``orders``."""
    async with (
        running(configured(folder / "s", role=gregor())) as slave,
        running(master_config(folder, slave)) as master,
        client_of(master) as mq,
    ):
        await until_in_sync(master)
        await send(mq, "orders", "first")
        yield master, slave


async def copies(master: Broker) -> dict[str, Any]:
    """What administrators are told about the copies of a broker (907), and its role (26)."""

    def answers() -> dict[str, Any]:
        with Asker(rocketmq_of(master)) as asker:
            copies = json.loads(asker.ask(GetBrokerHaStatus()).body)
            return {**copies, "role": asker.settings()["brokerRole"]}

    return await asyncio.to_thread(answers)


@in_loop
async def test_administrators_see_the_slave_and_whether_it_is_in_sync(tmp_path: Path) -> None:
    async with pair_with_a_message(tmp_path) as (master, slave):
        found, address = await copies(master), f"127.0.0.1:{slave.port}"
        assert (found["master"], found["role"], found["inSyncSlaveNums"]) == (True, "SYNC_MASTER", 1)
        end, (connection,) = found["masterCommitLogMaxOffset"], found["haConnectionInfo"]
        assert end > 0
        in_sync = {"addr": address, "slaveAckOffset": end, "diff": 0, "inSync": True}
        assert connection.items() >= in_sync.items()
        await slave.close()
        await until(lambda: master.replication.trouble is not None, "the pair to be out of sync")
        found = await copies(master)
        assert (found["master"], found["role"], found["inSyncSlaveNums"]) == (True, "SYNC_MASTER", 0)
        (connection,) = found["haConnectionInfo"]
        assert connection.items() >= {"addr": address, "slaveAckOffset": 0, "diff": end, "inSync": False}.items()


@pytest.mark.parametrize("wait", ["SYNC_FLUSH", "ASYNC_FLUSH"])
@in_loop
async def test_what_the_slave_does_not_have_is_not_acknowledged(tmp_path: Path, wait: str) -> None:
    async with running(configured(tmp_path / "s", role=gregor())) as slave:
        role = samsa(slave, 2000) + front_end(0, f"flushDiskType={wait}\n")
        async with running(configured(tmp_path / "m", role=role)) as master, client_of(master) as mq:
            await until_in_sync(master)
            await send(mq, "orders", "first")
            with holding_copies(slave):
                half = answered(master, "orders", "TRAN_MSG\x01true\x02PGROUP\x01p\x02")
                for answer in await asyncio.gather(answered(master, "orders"), half):
                    assert answer.code == ResponseCode.SYSTEM_ERROR, "a promotion of the slave may lose it"
                    assert "no answer within 2 s; it may be stored, and is readable once" in (answer.remark or "")
                assert await bodies_of(mq, "orders") == [b"first"]
            await until_in_sync(master)
            await until_same(tmp_path / "m", tmp_path / "s")
            assert await bodies_of(mq, "orders") == [b"first", b"no"]


MOVED = {"level": "DELAY\x011", "time": "TIMER_DELAY_MS\x01700", "commit": "TRAN_MSG\x01true\x02PGROUP\x01shop"}


@pytest.mark.parametrize("how", MOVED)
@in_loop
async def test_what_the_slave_gets_late_is_moved_once(tmp_path: Path, how: str) -> None:
    """The move is synced here, and the slave does not answer: the move is not made a second time."""
    waits = MOVED[how]
    async with running(configured(tmp_path / "s", role=gregor())) as slave:
        role = samsa(slave, 500) + front_end()
        async with running(configured(tmp_path / "m", role=role)) as master, client_of(master) as mq:
            await until_in_sync(master)
            await send(mq, "orders", "first")
            sent = await asyncio.to_thread(_ask, master, send_header(topic="orders", properties=waits), b"moved")
            assert sent.code == 0, sent.remark
            with holding_copies(slave):
                ending = None
                if how == "commit":
                    ending = asyncio.create_task(asyncio.to_thread(_ask, master, _end(sent, COMMIT)))
                await until(lambda: "no answer" in str(master.replication.trouble), "the slave to be too slow")
                if ending is not None:  # what the slave will have is committed
                    refused = await asyncio.to_thread(_ask, master, _end(sent, ROLLBACK))
                    assert "was ended before" in str(refused.remark)
            await until_in_sync(master)
            while b"moved" not in (found := await bodies_of(mq, "orders")):
                pass
            await asyncio.sleep(1.5)  # a refused move is tried again every second
            await send(mq, "orders", "last")
            assert found == [b"first", b"moved"]
            assert await bodies_of(mq, "orders") == [b"first", b"moved", b"last"]
            assert ending is None or (await ending).code == 0


def _ask(broker: Broker, header: Request, body: bytes = b"") -> RemotingCommand:
    with Asker(rocketmq_of(broker)) as asker:
        return asker.response(header, body)


def _end(sent: RemotingCommand, how: int) -> EndTransaction:
    return EndTransaction(
        producer_group="shop",
        msg_id="U",
        tran_state_table_offset=int(sent.ext["queueOffset"]),
        commit_log_offset=int(sent.ext["msgId"][16:], 16),
        commit_or_rollback=how,
    )


@in_loop
async def test_a_send_that_another_leader_overtakes_is_refused(tmp_path: Path) -> None:
    """The message may be lost with the master that is replaced, so its client must send it to the new one."""
    async with pair_with_a_message(tmp_path) as (master, slave):
        assert isinstance(master.commit, PairedCommit)
        with holding_copies(slave):
            under_way = asyncio.create_task(answered(master, "orders"))
            await until(lambda: bool(master.commit.out()), "the send to be synced here")
            master.commit.give_up("the slave was promoted", is_replaced=True)
            answer = await under_way
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert str(answer.remark).endswith("the slave was promoted; it may be stored")


@in_loop
async def test_a_fenced_master_serves_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samsa_module, "HEARTBEAT_S", 0.05)  # nothing is put that the promoted broker could refuse
    caplog.set_level(logging.INFO)
    async with running(configured(tmp_path / "s", role=gregor())) as slave:
        config = master_config(tmp_path, slave)
        async with running(config) as master, client_of(master, slave) as mq:
            await until_in_sync(master)
            await send(mq, "orders", "first")
            await slave.replication.promote(force=True)  # the operator was wrong: the master lives
            await until(lambda: master.replication.fenced, "the master to be fenced")
            assert master.rocketmq_address is None
            while await is_open(rocketmq_of(master)):
                pass
            await send(mq, "orders", "second")
        caplog.clear()
        async with running(config) as master:
            assert master.rocketmq_address is None
            assert not await is_open(rocketmq_of(master))
            assert any("RocketMQ's clients are not served" in record.message for record in caplog.records)
        async with running(configured(tmp_path / "m", role=front_end())) as master:  # also alone: see ``standing``
            assert not await is_open(rocketmq_of(master))


@asynccontextmanager
async def name_server(folder: Path) -> AsyncIterator[tuple[Address, list[str]]]:
    """Run a name server; yield its address, and the addresses that were registered there, one after the other."""
    file = folder / "namesrv.properties"
    file.write_text(f"listenPort=0\nbindAddress=127.0.0.1\nkvConfigPath={folder / 'kvConfig.json'}\n")
    config, _ = load(file.read_text(), str(file))
    server = NameServer(config, file)
    heard: list[str] = []
    register = server.routes.register

    def registered(who: BrokerRegistration, *rest: object) -> object:
        heard.append(who.address)
        return register(who, *rest)  # type: ignore[arg-type]

    server.routes.register = registered  # type: ignore[assignment,method-assign]
    await server.start()
    try:
        yield Address("127.0.0.1", server.port), heard
    finally:
        await server.stop()


@in_loop
async def test_an_old_master_that_comes_back_is_never_at_a_name_server(tmp_path: Path) -> None:
    """The name server would forget the promoted slave, which has its name, until that registers again."""
    async with name_server(tmp_path) as (address, heard):
        at = f"namesrvAddr={address}\n"
        async with running(configured(tmp_path / "s", role=gregor(more=at))) as slave:
            config = master_config(tmp_path, slave, at)
            async with running(config) as master, client_of(master) as mq:
                await until_in_sync(master)
                await send(mq, "orders", "first")
            await slave.replication.promote(force=True)
            await until(lambda: heard[-1:] == [str(rocketmq_of(slave))], "the promoted broker to register")
            heard.clear()
            async with running(config) as master:
                assert master.replication.fenced, "it has heard of the promotion before it served anybody"
                assert not await is_open(rocketmq_of(master))
                async with AsyncRocketMQ(str(address)) as mq:
                    await send(mq, "orders", "second")
            assert str(rocketmq_of(master)) not in heard


@in_loop
async def test_a_slave_says_that_it_serves_no_client(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with (
        running(configured(tmp_path / "m")) as master,
        running(configured(tmp_path / "s", role=slave_of(master) + front_end())) as slave,
    ):
        assert not await is_open(rocketmq_of(slave))
        assert any("RocketMQ's clients are not served" in record.message for record in caplog.records)
