"""``ctl close``, ``open``, ``delete``, ``move`` and ``reopen`` against a real broker and its clients."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest
from fix_broker import RunningBroker, StartBroker, WireClient, wait_until
from operated import ask, get, put, read, refusal, report, stored

pytestmark = pytest.mark.process


def states(broker: RunningBroker, topic: str = "orders") -> dict[int, bool]:
    """Index -> whether it is closed, of the partitions that are there."""
    return {row["index"]: row["closed"] for row in ask(broker, "partitions", topic)["partitions"]}


def fill(client: WireClient, *indexes: int) -> None:
    for index in indexes:
        for number in range(3):
            stored(client, "orders", index, b"%d of %d" % (number, index))


def contents(index: int) -> list[bytes]:
    return [b"%d of %d" % (number, index) for number in range(3)]


# ---- close, open


def test_a_closed_partition_refuses_in_the_words_of_a_java_broker(broker: RunningBroker) -> None:
    client = broker.client()
    fill(client, 0, 1, 2)
    assert ask(broker, "close", "orders", "0-1") == {"topic": "orders", "closed": [0, 1]}
    partition_key = f"[broker 'meta://{broker.address}'] [partition 'orders-1']"
    refused = f"Put message to {partition_key} failed.Detail:partition[1-1] has been closed"
    assert client.result(put("orders", 1, b"x")) == (403, refused)
    assert client.result(get("orders", 1)) == (403, "Partition[1-1] has been closed")
    assert read(client, "orders", 2) == contents(2)
    assert states(broker) == {0: True, 1: True, 2: False}
    assert report(broker, "open", "orders", "1") == ["opened orders-1"]
    assert states(broker) == {0: True, 1: False, 2: False}
    assert stored(client, "orders", 1, b"x") == len(b"".join(contents(1))) + 3 * 20
    assert client.result(put("orders", 0, b"x"))[0] == 403


def test_a_put_to_any_partition_goes_to_an_open_one(broker: RunningBroker) -> None:
    client = broker.client()
    report(broker, "close", "orders", "0-2")
    assert {client.result(put("orders", -1, b"x"))[1].split()[1] for _ in range(20)} == {"3"}
    assert report(broker, "close", "orders", "3") == ["closed orders-3"]
    assert client.result(put("orders", -1, b"x"))[0] == 403


def test_closed_is_forgotten_at_a_restart(broker: RunningBroker, ini: Path, start_broker: StartBroker) -> None:
    fill(broker.client(), 0)
    report(broker, "close", "orders", "0")
    assert broker.stop() == 0
    assert states(start_broker("start", "-f", ini)) == {0: False}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["close", "orders", "3-5"], "partitions orders-4, orders-5 are not known to this broker"),
        (["close", "nothing", "0"], "partition nothing-0 is not known to this broker"),
        (["open", "nothing", "0"], "partition nothing-0 is not known to this broker"),
        (["delete", "orders", "0"], "partition orders-0 is not on this broker"),
        (["move", "orders", "0", "--to", "1"], "partition orders-0 is not served by this broker"),
        (["reopen", "orders", "0"], "partition orders-0 is not on this broker"),
    ],
)
def test_partitions_that_are_not_there(arguments: list[str], sentence: str, broker: RunningBroker) -> None:
    assert refusal(broker, *arguments) == sentence


# ---- delete


def test_a_closed_partition_is_deleted(broker: RunningBroker) -> None:
    client = broker.client()
    fill(client, 0, 1)
    assert refusal(broker, "delete", "orders", "0") == (
        "partition orders-0 is not closed; close it or delete with --force"
    )
    assert read(client, "orders", 0) == contents(0)
    report(broker, "close", "orders", "0")
    assert ask(broker, "delete", "orders", "0") == {"topic": "orders", "deleted": [0]}
    assert sorted(path.name for path in broker.data.glob("orders*")) == ["orders-1"]
    assert client.result(get("orders", 0)) == (404, "The topic `orders` in partition `0` is not exists")
    assert stored(client, "orders", 0, b"new") == 0
    assert read(client, "orders", 0) == [b"new"]
    assert read(client, "orders", 1) == contents(1)


def incarnations(client: WireClient) -> dict[int, str]:
    code, text = client.result(b"stats incarnations 1\r\n")
    assert code == 200
    return {int(index): uuid for _, index, uuid, _, _ in map(str.split, text.splitlines()[1:-1])}


def test_a_deleted_and_recreated_partition_is_another_one(
    broker: RunningBroker, ini: Path, start_broker: StartBroker
) -> None:
    client = broker.client()
    fill(client, 0, 1)
    before = incarnations(client)
    report(broker, "delete", "orders", "0", "--force")
    assert incarnations(client) == {1: before[1]}
    fill(client, 0)
    after = incarnations(client)
    assert client.result(b"offset orders g 0 0 1 incarnation\r\n") == (200, after[0])
    assert after[0] != before[0]
    assert after[1] == before[1]
    report(broker, "close", "orders", "1")
    report(broker, "move", "orders", "1", "--to", "3")
    assert incarnations(client) == {0: after[0], 3: after[1]}
    broker.kill()
    assert incarnations(start_broker("start", "-f", ini).client()) == {0: after[0], 3: after[1]}


def test_delete_by_force_takes_open_ones_and_leaves_out_what_is_not_there(broker: RunningBroker) -> None:
    client = broker.client()
    fill(client, 0, 2)
    assert report(broker, "delete", "orders", "0-3", "--force") == ["deleted orders-0, orders-2"]
    assert states(broker) == {}
    assert not list(broker.data.glob("orders*"))


def test_a_deleted_partition_stays_deleted(broker: RunningBroker, ini: Path, start_broker: StartBroker) -> None:
    fill(broker.client(), 0, 1)
    report(broker, "delete", "orders", "0", "--force")
    broker.kill()
    again = start_broker("start", "-f", ini)
    assert states(again) == {1: False}
    assert read(again.client(), "orders", 1) == contents(1)


def test_a_put_under_way_to_a_deleted_partition_is_answered(broker: RunningBroker) -> None:
    client = broker.client()
    fill(client, 0)
    client.send(b"".join(put("orders", 0, b"x" * 1000, number) for number in range(3000)))
    report(broker, "delete", "orders", "0", "--force")
    codes = {reply.code for reply in client.replies(3000)}  # type: ignore[union-attr]
    assert codes <= {200, 500}
    assert client.ask(b"version 7\r\n").opaque == 7


# ---- move


@pytest.mark.parametrize(
    ("there", "arguments", "after"),
    [
        ([0], ["0", "--to", "3"], {3: 0}),
        ([0], ["0", "--offset", "9"], {9: 0}),
        ([1, 2], ["1-2", "--to", "0"], {0: 1, 1: 2}),
        ([0, 1, 2], ["0-2", "--offset", "1"], {1: 0, 2: 1, 3: 2}),
        ([0, 2], ["0-3", "--offset", "2"], {2: 0, 4: 2}),
        ([0, 1, 3], ["1-3", "--offset", "-1"], None),
    ],
)
def test_move(there: list[int], arguments: list[str], after: dict[int, int] | None, broker: RunningBroker) -> None:
    client = broker.client()
    fill(client, *there)
    report(broker, "close", "orders", "0-3")
    if after is None:
        assert refusal(broker, "move", "orders", *arguments) == "partition orders-0 is there already"
        assert list(states(broker)) == there
        return
    moved = ask(broker, "move", "orders", *arguments)["moved"]
    assert dict(moved) == {old: new for new, old in after.items()}
    assert states(broker) == dict.fromkeys(sorted(after), True)
    for index in after:
        report(broker, "open", "orders", str(index))
        assert read(client, "orders", index) == contents(after[index])
    assert sorted(path.name for path in broker.data.glob("orders*")) == [f"orders-{index}" for index in sorted(after)]


def test_moved_partitions_go_on_after_a_crash(broker: RunningBroker, ini: Path, start_broker: StartBroker) -> None:
    client = broker.client()
    fill(client, 0)
    report(broker, "close", "orders", "0")
    assert report(broker, "move", "orders", "0", "--to", "2")[0] == "moved orders-0 to orders-2"
    report(broker, "open", "orders", "2")
    stored(client, "orders", 2, b"behind")
    broker.kill()
    client = start_broker("start", "-f", ini).client()
    assert read(client, "orders", 2) == [*contents(0), b"behind"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["0", "--to", "2"], "partition orders-0 is not closed; close it first"),
        (["1", "--to", "1"], "the offset is 0: nothing would move"),
        (["1", "--offset", "-2"], "partition orders-1 would get index -1"),
        (["1", "--to", "0"], "partition orders-0 is there already"),
    ],
)
def test_moves_that_are_refused(arguments: list[str], sentence: str, broker: RunningBroker) -> None:
    fill(broker.client(), 0, 1)
    report(broker, "close", "orders", "1")
    assert refusal(broker, "move", "orders", *arguments) == sentence
    assert states(broker) == {0: False, 1: True}


# ---- partitions that transactions need

XID = "XID:1:6162:63:query"


def prepare(client: WireClient, index: int) -> None:
    for request in (
        f"transaction {XID} null BEGIN 1\r\n".encode(),
        b"put orders %d 5 0 %s 2\r\nhello" % (index, XID.encode()),
        f"transaction {XID} null PREPARE 3\r\n".encode(),
    ):
        assert client.result(request)[0] == 200


@pytest.mark.parametrize("arguments", [["delete", "orders", "0", "--force"], ["move", "orders", "0", "--to", "3"]])
def test_a_partition_that_a_transaction_needs_stays(arguments: list[str], broker: RunningBroker) -> None:
    client = broker.client()
    fill(client, 0)
    prepare(client, 0)
    report(broker, "close", "orders", "0")
    assert refusal(broker, *arguments) == (f"partition orders-0 is needed by transactions that have not ended: {XID}")
    report(broker, "transaction", "rollback", XID)
    report(broker, *arguments)


# ---- reopen


def limit_files(broker: RunningBroker, byte_count: int) -> None:
    """Let no file of the broker grow beyond this: to it, a disk that fails."""
    hard = resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE)[1]
    resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE, (byte_count, hard))


def test_a_read_only_partition_is_recovered_without_a_restart(broker: RunningBroker) -> None:
    client = broker.client()
    fill(client, 0)
    before = read(client, "orders", 0)
    limit_files(broker, 50_000)
    code, text = client.result(put("orders", 0, b"x" * 60_000))
    assert (code, "partition orders-0 is read-only: writing 60020 bytes at offset 78 failed" in text) == (500, True)
    [row] = ask(broker, "status")["read_only"]
    assert (row["topic"], row["index"]) == ("orders", 0)
    assert any(line.startswith("READ-ONLY") for line in report(broker, "status"))
    assert "read-only: writing 60020 bytes" in report(broker, "partitions", "orders")[1]
    assert read(client, "orders", 0) == before
    limit_files(broker, resource.RLIM_INFINITY)
    assert client.result(put("orders", 0, b"still"))[0] == 500
    answer = ask(broker, "reopen", "orders", "0")
    assert answer["topic"] == "orders"
    assert stored(client, "orders", 0, b"goes on") == 78
    assert read(client, "orders", 0) == [*before, b"goes on"]
    assert ask(broker, "status")["read_only"] == []
    assert refusal(broker, "reopen", "orders", "0") == (
        "partition orders-0 takes messages: there is nothing to recover"
    )
    assert report(broker, "status")[-1].startswith("transactions")


def test_a_partition_that_could_not_be_opened_is_served_once_it_is_mended(
    broker: RunningBroker, ini: Path, start_broker: StartBroker
) -> None:
    fill(broker.client(), 0)
    assert broker.stop() == 0
    folder = broker.data / "orders-0"
    segment = folder / f"{0:020d}.meta"
    (folder / f"{10**6:020d}.meta").write_bytes(segment.read_bytes())
    again = start_broker("start", "-f", ini)
    [row] = ask(again, "status")["not_served"]
    assert "there is a gap" in row["reason"]
    assert any(line.startswith("NOT SERVED") for line in report(again, "status"))
    assert "orders-0 is not served: " in report(again, "partitions")[0]
    client = again.client()
    assert client.result(get("orders", 0))[0] == 500
    assert "cannot be recovered" in refusal(again, "reopen", "orders", "0")
    os.unlink(folder / f"{10**6:020d}.meta")
    assert report(again, "reopen", "orders", "0") == ["orders-0 takes messages again"]
    assert read(client, "orders", 0) == contents(0)
    assert stored(client, "orders", 0, b"x") == 78


def test_a_partition_that_cannot_be_opened_can_be_deleted(
    broker: RunningBroker, ini: Path, start_broker: StartBroker
) -> None:
    fill(broker.client(), 0)
    assert broker.stop() == 0
    (broker.data / "orders-0" / f"{10**6:020d}.meta").write_bytes(b"x" * 100)
    again = start_broker("start", "-f", ini)
    assert report(again, "delete", "orders", "0", "--force") == ["deleted orders-0"]
    assert stored(again.client(), "orders", 0, b"new") == 0


def test_a_failed_commit_is_completed_when_its_partition_is_back(
    broker: RunningBroker, ini: Path, start_broker: StartBroker
) -> None:
    client = broker.client()
    stored(client, "orders", 0, b"x" * 40_000)
    prepare(client, 0)
    limit_files(broker, 40_025)
    code, _ = client.result(f"transaction {XID} null COMMIT_TWO_PHASE 3\r\n".encode())
    assert code == 500
    assert ask(broker, "status")["stuck_commits"] == [XID]
    assert any(line.startswith("NOT READABLE YET") and XID in line for line in report(broker, "status"))
    limit_files(broker, resource.RLIM_INFINITY)
    report(broker, "reopen", "orders", "0")
    wait_until(lambda: ask(broker, "status")["stuck_commits"] == [], "the commit")
    stored(client, "orders", 0, b"behind it")
    for once in (broker, None):
        if once is None:
            assert broker.stop() == 0
        running = once or start_broker("start", "-f", ini)
        assert read(running.client(), "orders", 0) == [b"x" * 40_000, b"hello", b"behind it"]
