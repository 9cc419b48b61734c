"""SIGHUP and ``ctl reload`` on a real broker: changes take effect, and nobody who puts or reads notices."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fix_broker import DEADLINE_S, RunningBroker, WireClient, wait_until
from operated import ask, ctl, get, put, read, refusal, report, stored

from metaq.formats.frames import walk

pytestmark = pytest.mark.process


def stats(client: WireClient, item: str) -> list[str]:
    return client.result(f"stats {item} 1\r\n".encode())[1].splitlines()[1:-1]


def checksum(client: WireClient) -> int:
    [line] = [line for line in stats(client, "") if line.startswith("config_checksum ")]
    return int(line.split()[1])


def test_a_reload_is_reported_and_takes_effect(broker: RunningBroker, ini: Path) -> None:
    client = broker.client()
    assert client.result(put("fresh", 0, b"x"))[0] == 500
    assert client.result(put("orders", 5, b"x"))[0] == 500
    before = checksum(client)
    text = (
        ini.read_text().replace("[topic=orders]", "[topic=orders]\nnumPartitions=6").replace("brokerId=1", "brokerId=2")
    )
    ini.write_text(text.replace("[topic=late]\nunflushThreshold=10\n", "") + "[topic=fresh]\n")
    assert report(broker, "reload") == [
        f"reloaded {ini}, checksum {checksum(client)}",
        "new topic fresh",
        "topic orders: numPartitions changed",
        "topic late is gone from the file; it is accepted until the next start",
        "[system] brokerId takes effect at the next start",
    ]
    assert (client.result(b"stats config 1\r\n")[1], checksum(client) != before) == (ini.read_text(), True)
    assert stored(client, "fresh", 0, b"x") == stored(client, "orders", 5, b"x") == stored(client, "late", 0, b"x") == 0
    assert ask(broker, "status")["config"]["restart_needed"] == ["[system] brokerId"]
    assert "needs a restart  [system] brokerId" in report(broker, "status")
    assert ask(broker, "reload")["removed"] == ["late"]


def test_a_wrong_file_is_refused_and_everything_stays(broker: RunningBroker, ini: Path) -> None:
    client, right = broker.client(), ini.read_text()
    ini.write_text(right + "[topic=fresh]\nstat=perhaps\n")
    expected = f"{ini} [topic=fresh] stat: value 'perhaps'; expected true or false; nothing has changed"
    assert refusal(broker, "reload") == expected
    assert client.result(b"stats config 1\r\n")[1] == right
    os.kill(broker.process.pid, signal.SIGHUP)
    wait_until(lambda: broker.log_text().count("configuration not reloaded") == 2, "SIGHUP is refused in the log too")
    assert client.result(put("fresh", 0, b"x"))[0] == 500


def test_sighup_reloads(broker: RunningBroker, ini: Path) -> None:
    client = broker.client()
    for number in range(3):
        ini.write_text(ini.read_text() + f"[topic=fresh-{number}]\n")
        os.kill(broker.process.pid, signal.SIGHUP)
        wait_until(lambda: client.result(b"stats config 1\r\n")[1] == ini.read_text(), "the file is taken over")
        assert stored(client, f"fresh-{number}", 0, b"x") == 0


def test_sighup_ends_a_development_broker_cleanly(dev_broker: RunningBroker) -> None:
    answer = ctl("--data", dev_broker.data, "reload")
    assert (answer.status, "without a configuration file" in answer.error) == (1, True)
    os.kill(dev_broker.process.pid, signal.SIGHUP)
    assert dev_broker.process.wait(DEADLINE_S) == 0


def test_flush_modes_change_under_way(broker: RunningBroker, ini: Path) -> None:
    client = broker.client()
    assert stored(client, "late", 0, b"one") == 0
    assert client.result(get("late", 0))[0] == 404  # acknowledged, not yet readable
    ini.write_text(ini.read_text().replace("unflushThreshold=10", "unflushThreshold=0"))
    assert ask(broker, "reload")["changed"] == {"late": ["unflushThreshold"]}
    wait_until(lambda: _readable(client), "it is synced now")
    stored(client, "late", 0, b"two")
    assert read(client, "late", 0) == [b"one", b"two"]
    assert "late threshold" not in "".join(stats(client, "durability"))
    ini.write_text(ini.read_text().replace("unflushThreshold=0\n", "unflushThreshold=10\n"))
    ask(broker, "reload")
    stored(client, "late", 0, b"three")
    assert read(client, "late", 0) == [b"one", b"two"]
    ini.write_text(ini.read_text().replace("[topic=late]\n", "[topic=late]\nunflushInterval=20\n"))
    ask(broker, "reload")
    wait_until(lambda: read(client, "late", 0) == [b"one", b"two", b"three"], "the new timer fires")


def _readable(client: WireClient) -> bool:
    return int(client.result(b"offset late g 0 9000000000000000000 1\r\n")[1]) > 0


# ---- load


@dataclass
class Load:
    """One connection that puts until it is told to stop, and remembers what was acknowledged."""

    client: WireClient
    topic: str
    index: int
    stop: threading.Event
    acknowledged: dict[int, bytes] = field(default_factory=dict)
    failure: BaseException | None = None

    def run(self) -> None:
        number = 0
        try:
            while not self.stop.is_set():
                bodies = [b"%d of %d " % (number + i, self.index) * 5 for i in range(50)]
                number += len(bodies)
                self.client.send(b"".join(put(self.topic, self.index, body, i) for i, body in enumerate(bodies)))
                for body, reply in zip(bodies, self.client.replies(len(bodies)), strict=True):
                    assert reply.code == 200, reply  # type: ignore[union-attr]
                    self.acknowledged[int(reply.text.split()[2])] = body  # type: ignore[union-attr]
        except BaseException as failure:
            self.failure = failure


def everything(client: WireClient, topic: str, index: int) -> dict[int, bytes]:
    end = int(client.result(b"offset %s g %d 9000000000000000000 1\r\n" % (topic.encode(), index))[1])
    offset, found = 0, {}
    while offset < end:
        for frame in walk(client.value(get(topic, index, offset)), offset):
            found[frame.offset] = bytes(frame.body)
            offset = frame.end
    return found


def test_twenty_reloads_under_load_lose_nothing(broker: RunningBroker, ini: Path) -> None:
    """Topics come and go, flush modes and partitions change, wrong files are among them; every put is acknowledged."""
    stop = threading.Event()
    loads = [Load(broker.client(), topic, index, stop) for topic in ("orders", "late") for index in (0, 1)]
    threads = [threading.Thread(target=load.run) for load in loads]
    for thread in threads:
        thread.start()
    first = ini.read_text()
    modes = ["", "unflushThreshold=0\n", "unflushThreshold=100\nunflushInterval=5\n", "unflushThreshold=1000\n"]
    for number in range(20):
        orders = f"[topic=orders]\nnumPartitions={2 + number % 5}\n{modes[number % 4]}"
        changed = first.split("[topic=orders]")[0] + (orders if number % 3 else "") + f"[topic=extra-{number}]\n"
        ini.write_text(changed + ("[topic=late]\n" if number % 2 else "") + ("nonsense\n" if number % 7 == 6 else ""))
        answer = ctl("--data", broker.data, "reload")
        assert answer.status == (1 if number % 7 == 6 else 0), answer
        _wait_for_more(loads)
    stop.set()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert [load.failure for load in loads] == [None] * 4
    ini.write_text(first.replace("unflushThreshold=10\n", ""))  # what is not synced yet is synced now
    report(broker, "reload")
    wait_until(lambda: all(row["end"] == row["readable_end"] for row in _partitions(broker)), "all of it can be read")
    client = broker.client()
    for load in loads:
        assert load.client.ask(b"version 5\r\n").opaque == 5  # the connection has lived through all of it
        assert load.acknowledged.items() <= everything(client, load.topic, load.index).items()
        assert len(load.acknowledged) >= 20 * 50


def _wait_for_more(loads: list[Load]) -> None:
    before = [len(load.acknowledged) for load in loads]

    def grown() -> bool:
        now = [len(load.acknowledged) for load in loads]
        return all(b > a for a, b in zip(before, now, strict=True)) or any(load.failure for load in loads)

    wait_until(grown, "puts go on")


def _partitions(broker: RunningBroker) -> list[dict[str, Any]]:
    rows = ask(broker, "partitions")["partitions"]
    assert isinstance(rows, list)
    return rows
