"""Transactions over the remoting protocol: half messages, ends, questions to producers, restarts between."""

from __future__ import annotations

from pathlib import Path

import pytest
from metaq_broker.log.engine.outcomes import BlockInvalid, NothingAt, Refusal, StorageFailed
from metaq_broker.rocketmq.access import Access
from metaq_broker.rocketmq.delays.delays import TIMER_MAX_MS, DelayInvalid
from metaq_broker.rocketmq.half_messages.half_messages import AskPolicy
from metaq_broker.rocketmq.half_messages.transactions import TooManyHalfMessages
from metaq_broker.rocketmq.messages.message_store import StoredBatch
from metaq_broker.rocketmq.system_topics import GIVEN_UP_TOPIC, HALF_TOPIC, NOTE_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from metaq_broker.serve.accounts.account_list import parse_accounts
from remoting_brokers import KnownAccounts, WaitingBroker, play
from remoting_headers import send_header
from waiting import until

from metaq.formats.rocketmq.message_ids import OffsetMessageId
from metaq.formats.rocketmq.records import read_record
from metaq.formats.rocketmq.sys_flags import PREPARED
from metaq.protocols.remoting.acl import Credentials, sign
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers import to_request
from metaq.protocols.remoting.headers.transactions import (
    COMMIT,
    ROLLBACK,
    UNKNOWN,
    CheckTransactionState,
    EndTransaction,
)

HALF = {"TRAN_MSG": "true", "PGROUP": "producers", "UNIQ_KEY": "U1", "TAGS": "A"}
EAGER = AskPolicy(patience_ms=30, interval_ms=40, asks_max=3)


def end(stored: StoredBatch, how: int, group: str = "producers", **changes: int) -> RemotingCommand:
    values = {
        "tran_state_table_offset": stored.queue_offset,
        "commit_log_offset": stored.physical_offsets[0],
        "commit_or_rollback": how,
        **changes,
    }
    return to_request(EndTransaction(producer_group=group, msg_id="U1", **values), opaque=3)


def test_a_commit_makes_the_message_visible(tmp_path: Path) -> None:
    async def scenario(broker: WaitingBroker) -> None:
        half = await broker.stored(b"order", HALF, queue=2)
        assert broker.bodies(HALF_TOPIC) == [b"order"]
        assert broker.records(HALF_TOPIC)[0].sys_flag == 0
        assert broker.bodies(queue=2) == []
        assert (await broker.ask(end(half, COMMIT))).code == 0
        (record,) = broker.records(queue=2)
        assert record.body == b"order"
        assert record.sys_flag == 8
        assert record.prepared_transaction_offset == half.physical_offsets[0]
        assert record.property_map() == {**HALF, "REAL_TOPIC": "t", "REAL_QID": "2"}
        await until(lambda: len(broker.records(NOTE_TOPIC)) == 1)
        (note,) = broker.records(NOTE_TOPIC)
        assert (note.body, note.property_map()) == (b"0", {"TAGS": "d"})

    play(tmp_path, scenario)


def test_a_rollback_makes_it_go_away(tmp_path: Path) -> None:
    async def scenario(broker: WaitingBroker) -> None:
        half = await broker.stored(b"order", HALF)
        assert (await broker.ask(end(half, ROLLBACK))).code == 0
        assert broker.bodies() == []
        again = await broker.ask(end(half, COMMIT))
        assert (again.code, again.remark) == (1, "the transaction was ended before; nothing was done")
        assert broker.bodies() == []

    play(tmp_path, scenario)


@pytest.mark.parametrize(
    ("changes", "remark"),
    [
        ({"group": "others"}, "another producer group"),
        ({"commit_log_offset": 5}, "commitLogOffset"),
        ({"tran_state_table_offset": 9}, "no half message"),
    ],
)
def test_other_groups_and_wrong_offsets(tmp_path: Path, changes: dict[str, object], remark: str) -> None:
    async def scenario(broker: WaitingBroker) -> None:
        half = await broker.stored(b"order", HALF)
        response = await broker.ask(end(half, COMMIT, **changes))  # type: ignore[arg-type]
        assert response.code == 1
        assert remark in (response.remark or "")
        assert broker.bodies() == []
        assert (await broker.ask(end(half, COMMIT))).code == 0

    play(tmp_path, scenario)


@pytest.mark.parametrize("found", [StorageFailed("a frame is damaged"), NothingAt(0)])
@pytest.mark.parametrize("how", [COMMIT, ROLLBACK])
def test_with_accounts_only_a_message_that_can_be_read_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: int, found: Refusal
) -> None:
    account = Credentials("producer", "12345678")
    text = f"accounts:\n- accessKey: {account.access_key}\n  secretKey: '{account.secret_key}'\n  topicPerms: [t=PUB]\n"
    accounts = parse_accounts(text)

    async def scenario(broker: WaitingBroker) -> None:
        half = await broker.stored(b"order", HALF)
        broker.dispatcher.access = Access(KnownAccounts(accounts), broker.engine)
        with monkeypatch.context() as patch:
            patch.setattr(broker.store, "find", lambda physical_offset: found)
            refused = await broker.ask(sign(end(half, how), account))
            assert (refused.code, broker.records(NOTE_TOPIC)) == (1, [])
            broker.dispatcher.access = Access(None, broker.engine)
            assert (await broker.ask(end(half, how))).code == 0, "without accounts nobody has to be let in"

    play(tmp_path, scenario)


@pytest.mark.parametrize(
    ("changes", "remark"),
    [
        ({}, "the transaction was ended before; nothing was done"),
        ({"tran_state_table_offset": 9}, "there is no half message with this tranStateTableOffset"),
    ],
)
def test_a_message_that_is_gone_is_refused_as_without_accounts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, int], remark: str
) -> None:
    account = Credentials("producer", "12345678")
    text = f"accounts:\n- accessKey: {account.access_key}\n  secretKey: '{account.secret_key}'\n  topicPerms: [t=PUB]\n"

    async def scenario(broker: WaitingBroker) -> None:
        half = await broker.stored(b"order", HALF)
        assert (await broker.ask(end(half, ROLLBACK))).code == 0
        monkeypatch.setattr(broker.store, "find", NothingAt)
        assert (await broker.ask(end(half, COMMIT, **changes))).remark == remark  # type: ignore[arg-type]
        broker.dispatcher.access = Access(KnownAccounts(parse_accounts(text)), broker.engine)
        assert (await broker.ask(sign(end(half, COMMIT, **changes), account))).remark == remark  # type: ignore[arg-type]

    play(tmp_path, scenario)


def test_committed_twice_it_is_delivered_once_also_by_the_next_process(tmp_path: Path) -> None:
    stored: list[StoredBatch] = []

    async def first(broker: WaitingBroker) -> None:
        stored.append(await broker.stored(b"order", HALF))
        assert (await broker.ask(end(stored[0], COMMIT))).code == 0
        assert (await broker.ask(end(stored[0], COMMIT))).code == 1

    async def second(broker: WaitingBroker) -> None:
        assert (await broker.ask(end(stored[0], COMMIT))).code == 1
        assert broker.bodies() == [b"order"]

    play(tmp_path, first, clean=False)
    play(tmp_path, second)


def test_an_unknown_outcome_gets_no_answer_and_the_producer_is_asked(tmp_path: Path) -> None:
    async def scenario(broker: WaitingBroker) -> None:
        producer = broker.producer("producers")
        half = await broker.stored(b"order", HALF, queue=1)
        command = end(half, UNKNOWN)
        session = broker.producer("others")
        broker.dispatcher.carry_out(_call(command, session))
        assert session.responses == [None]
        await until(lambda: len(producer.pushed) >= 2)
        asked = producer.pushed[0]
        assert asked.code == CheckTransactionState.CODE
        header = CheckTransactionState.from_ext(asked.ext)
        assert header.tran_state_table_offset == half.queue_offset
        assert header.commit_log_offset == half.physical_offsets[0]
        assert (header.msg_id, header.transaction_id) == ("U1", "U1")
        assert header.offset_msg_id == half.message_ids()[0]
        record = read_record(asked.body)
        assert (record.topic, record.queue_id, record.body) == ("t", 1, b"order")
        assert record.property_map()["TRANSACTION_CHECK_TIMES"] == "1"
        (waiting,) = broker.records(HALF_TOPIC)
        assert "TRANSACTION_CHECK_TIMES" not in waiting.property_map()
        assert (await broker.ask(end(half, COMMIT))).code == 0
        assert broker.bodies(queue=1) == [b"order"]

    play(tmp_path, scenario, EAGER)


def _call(command: RemotingCommand, session: object):  # type: ignore[no-untyped-def]
    from metaq_broker.rocketmq.session import Call

    return Call(command, session)  # type: ignore[arg-type]


def test_nobody_decides(tmp_path: Path) -> None:
    async def scenario(broker: WaitingBroker) -> None:
        half = await broker.stored(b"order", HALF)
        await broker.bodies_are(b"order", topic=GIVEN_UP_TOPIC)
        assert broker.bodies() == []
        assert (await broker.ask(end(half, COMMIT))).code == 1

    play(tmp_path, scenario, EAGER)


def test_a_producer_may_want_to_be_asked_later(tmp_path: Path) -> None:
    async def scenario(broker: WaitingBroker) -> None:
        producer = broker.producer("producers")
        await broker.stored(b"patient", {**HALF, "CHECK_IMMUNITY_TIME_IN_SECONDS": "600"})
        await broker.stored(b"other", HALF)
        await until(lambda: len(producer.pushed) >= 2)
        assert {read_record(each.body).body for each in producer.pushed} == {b"other"}

    play(tmp_path, scenario, EAGER)


def test_but_not_as_late_as_it_likes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's half messages behind it leave the disk meanwhile."""
    monkeypatch.setattr("metaq_broker.rocketmq.half_messages.transactions.PATIENCE_MS_MAX", 30)

    async def scenario(broker: WaitingBroker) -> None:
        producer = broker.producer("producers")
        await broker.stored(b"patient", {**HALF, "CHECK_IMMUNITY_TIME_IN_SECONDS": "9" * 18})
        await until(lambda: len(producer.pushed) >= 1)

    play(tmp_path, scenario, EAGER)


def test_a_delay_counts_from_the_commit(tmp_path: Path) -> None:
    async def scenario(broker: WaitingBroker) -> None:
        half = await broker.stored(b"order", {**HALF, "DELAY": "2"}, queue=3)
        assert broker.bodies(HALF_TOPIC) == [b"order"]
        assert (await broker.ask(end(half, COMMIT))).code == 0
        assert broker.bodies(SCHEDULE_TOPIC, 1) == [b"order"]
        await broker.bodies_are(b"order", queue=3)

    play(tmp_path, scenario)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_delivery_time_of_a_half_message_is_kept(tmp_path: Path, restarted: bool) -> None:
    halves: list[StoredBatch] = []

    async def first(broker: WaitingBroker) -> None:
        halves.append(await broker.stored(b"soon", {**HALF, "TIMER_DELAY_MS": "300"}, queue=3))
        halves.append(await broker.stored(b"tomorrow", {**HALF, "TIMER_DELAY_SEC": "86400"}, queue=3))
        if not restarted:
            await second(broker)

    async def second(broker: WaitingBroker) -> None:
        for half in halves:
            assert (await broker.ask(end(half, COMMIT))).code == 0
        committed_ms = broker.clock.now_ms()
        assert broker.bodies(TIMER_TOPIC) == [b"soon", b"tomorrow"]
        await broker.bodies_are(b"soon", queue=3)
        (record,) = broker.records(queue=3)
        assert record.sys_flag == 8
        assert committed_ms < int(record.property_map()["TIMER_OUT_MS"]) <= committed_ms + 300

    play(tmp_path, first, clean=not restarted)
    if restarted:
        play(tmp_path, second)


@pytest.mark.parametrize(
    ("properties", "refusal"),
    [({"TIMER_DELAY_SEC": "soon"}, DelayInvalid), ({"TIMER_DELAY_MS": str(TIMER_MAX_MS + 60_000)}, BlockInvalid)],
)
def test_half_messages_with_wrong_times(tmp_path: Path, properties: dict[str, str], refusal: type[Refusal]) -> None:
    async def scenario(broker: WaitingBroker) -> None:
        assert isinstance(await broker.send(b"order", {**HALF, **properties}), refusal)
        assert broker.bodies(HALF_TOPIC) == []

    play(tmp_path, scenario)


@pytest.mark.parametrize("value", ["false", "no"])
def test_other_messages_are_no_half_messages(tmp_path: Path, value: str) -> None:
    async def scenario(broker: WaitingBroker) -> None:
        await broker.stored(b"plain", {"TRAN_MSG": value})
        await broker.stored(b"sent back", {**HALF, "DELAY": "1"}, reconsume_times=1)
        assert broker.bodies() == [b"plain"]
        await broker.bodies_are(b"plain", b"sent back")

    play(tmp_path, scenario)


def test_only_so_many_may_be_open(tmp_path: Path) -> None:
    async def scenario(broker: WaitingBroker) -> None:
        for _ in range(3):
            await broker.stored(b"order", HALF)
        outcome = await broker.send(b"order", HALF)
        assert isinstance(outcome, TooManyHalfMessages)
        assert isinstance(outcome, Refusal)

    play(tmp_path, scenario, AskPolicy(open_max=3))


def test_kills_in_the_middle(tmp_path: Path) -> None:
    """Ends are sent without waiting, the process is killed, the producer is asked: each is delivered once."""
    ends: list[StoredBatch] = []

    async def first(broker: WaitingBroker) -> None:
        for number in range(30):
            ends.append(await broker.stored(b"%d" % number, HALF))
        for half in ends[:20]:
            broker.dispatcher.carry_out(_call(end(half, COMMIT), broker.producer("others")))
        await until(lambda: len(broker.bodies()) >= 1)

    async def again(broker: WaitingBroker) -> None:
        for half in ends:
            await broker.ask(end(half, COMMIT))
        assert sorted(map(int, broker.bodies())) == list(range(30))

    play(tmp_path, first, clean=False)
    play(tmp_path, again, clean=False)
    play(tmp_path, again)


def test_a_message_that_is_prepared_is_a_half_message_without_the_property(tmp_path: Path) -> None:
    async def scenario(broker: WaitingBroker) -> None:
        broker.mount_sends()
        prepared = send_header(producer_group="shop", sys_flag=PREPARED, born_timestamp=77, batch=False)
        answer = await broker.ask(to_request(prepared, b"prepared", opaque=1))
        assert (answer.code, broker.bodies()) == (0, [])
        place = OffsetMessageId.parse(answer.ext["msgId"]).physical_offset
        stored = StoredBatch(0, int(answer.ext["queueOffset"]), [place], 0, "")
        assert (await broker.ask(end(stored, COMMIT, "shop"))).code == 0
        await broker.bodies_are(b"prepared")

    play(tmp_path, scenario, more="[rocketmq]\nenabled=true\n")


def test_a_half_message_with_numbers_of_thousands_of_digits_stops_nobody(tmp_path: Path) -> None:
    digits, halves = "9" * 5000, list[StoredBatch]()

    async def first(broker: WaitingBroker) -> None:
        halves.append(await broker.stored(b"odd", {**HALF, "DELAY": digits, "CHECK_IMMUNITY_TIME_IN_SECONDS": digits}))
        halves.append(await broker.stored(b"plain", HALF))

    async def second(broker: WaitingBroker) -> None:
        assert (await broker.ask(end(halves[1], COMMIT))).code == 0
        assert broker.bodies() == [b"plain"]
        assert (await broker.ask(end(halves[0], COMMIT))).code == 0
        await broker.bodies_are(b"plain", b"odd")

    play(tmp_path, first, clean=False)
    play(tmp_path, second)
