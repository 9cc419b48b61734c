"""A real broker that finds at its start that durable bytes are gone: what clients and operators see of it."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from examples import rarely
from fix_broker import RunningBroker, StartBroker, wait_until, write_ini
from metaq_broker.cli import main
from operated import ask, get, refusal, report, stored

from metaq.formats.frames import HEADER_BYTES, walk
from metaq.protocols.text.commands import Value

pytestmark = pytest.mark.process

SEGMENT_BYTES = 4000


@pytest.fixture
def ini(tmp_path: Path) -> Path:
    return write_ini(tmp_path, "[topic=orders]\n", brokerId=1, numPartitions=4, maxSegmentSize=SEGMENT_BYTES)


def fill(broker: RunningBroker, count: int, first: int = 0) -> int:
    """Put messages; return where the partition ends then."""
    client = broker.client()
    for number in range(first, first + count):
        end = stored(client, "orders", 0, b"message %d" % number) + HEADER_BYTES + len(b"message %d" % number)
    client.close()
    return end


def bodies_from(broker: RunningBroker, offset: int) -> list[bytes]:
    """Read on from ``offset``, as a consumer does that knows it from before."""
    client, found = broker.client(), []
    while isinstance(reply := client.ask(get("orders", 0, offset)), Value):
        for frame in walk(reply.data, offset):
            found.append(bytes(frame.body))
            offset = frame.offset + HEADER_BYTES + len(frame.body)
    client.close()
    return found


def failures(broker: RunningBroker) -> list[str]:
    client = broker.client()
    lines = client.result(b"stats failures 1\r\n")[1].splitlines()[1:-1]
    client.close()
    return lines


def fsck(broker: RunningBroker) -> tuple[int, dict[str, Any]]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        status = main(["fsck", "--data", str(broker.data), "--json"])
    return status, json.loads(out.getvalue())


def newest_segment(broker: RunningBroker) -> Path:
    return max((broker.data / "orders-0").glob("*.meta"))


@pytest.mark.parametrize(
    ("how", "stop"), [("removed", "kill"), ("shortened", "stop"), *rarely(("removed", "stop"), ("shortened", "kill"))]
)
def test_a_reader_at_the_end_gets_every_message_that_is_put_later(
    how: str, stop: str, broker: RunningBroker, ini: Path, start_broker: StartBroker
) -> None:
    end = fill(broker, 300)
    noted = broker.data / "durable-ends"
    wait_until(lambda: noted.exists() and noted.read_text().split("\n")[1].startswith(f"{end} "), "the end is noted")
    getattr(broker, stop)()
    newest = newest_segment(broker)
    if how == "removed":
        newest.unlink()
    else:
        newest.write_bytes(newest.read_bytes()[:40])
    status, document = fsck(broker)
    assert status == 1
    (partition,) = document["folders"][0]["partitions"]
    assert any("that were durable are gone" in problem for problem in partition["problems"])

    broker = start_broker("start", "-f", ini)
    fill(broker, 120, 1000)
    later = bodies_from(broker, end)
    if stop == "stop":
        assert later == [b"message %d" % number for number in range(1000, 1120)]
    (line,) = [line for line in failures(broker) if "lost_from" in line]
    assert line.startswith("orders part 0 lost_from ")
    assert any("DATA LOST" in line and "orders-0" in line for line in report(broker, "status"))
    (lost,) = ask(broker, "status")["lost"]
    if stop == "stop":
        assert lost["end"] == end


def test_a_loss_is_shown_until_it_is_acknowledged(broker: RunningBroker, ini: Path, start_broker: StartBroker) -> None:
    assert refusal(broker, "acknowledge", "orders", "0") == "partition orders-0 is not among those that lost data"
    end = fill(broker, 20)
    assert broker.stop() == 0
    shutil.rmtree(broker.data / "orders-0")
    status, document = fsck(broker)
    assert (status, document["folders"][0]["missing"]) == (1, ["orders-0"])
    for _ in range(2):
        broker = start_broker("start", "-f", ini)
        assert failures(broker) == [f"orders part 0 lost_from 0 lost_to {end} the partition's folder is gone"]
        broker.kill()
    status, document = fsck(broker)
    assert [loss["partition"] for loss in document["folders"][0]["lost"]] == ["orders-0"]
    broker = start_broker("start", "-f", ini)
    assert report(broker, "acknowledge", "orders", "0-3") == ["acknowledged orders-0"]
    assert failures(broker) == []
    assert ask(broker, "status")["lost"] == []
    broker.kill()
    assert failures(start_broker("start", "-f", ini)) == []
