"""A real broker whose old segments leave while it is used, and one whose disk gets full."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fix_broker import RunningBroker, StartBroker, WireClient, system_section, wait_until

from metaq.formats.frames import encode_frame, walk

pytestmark = pytest.mark.process

SYSTEM = system_section(1, maxSegmentSize=1000) + "stat=true\n"
EACH_SECOND = "deleteWhen=* * * * * ?\n"
BODY = b"x" * 80
"""Ten messages of 100 bytes fill a segment."""


@pytest.fixture
def start(start_broker: StartBroker, tmp_path: Path) -> Callable[..., RunningBroker]:
    """Start a broker on the same folder again and again, with lines for [system]."""

    def run(lines: str, data: Path = tmp_path / "data") -> RunningBroker:
        file = tmp_path / "server.ini"
        file.write_text(f"{SYSTEM}dataPath={data}\n{lines}[topic=orders]\n")
        return start_broker("start", "-f", file)

    return run


def put(client: WireClient, count: int, topic: str = "orders") -> list[tuple[int, str]]:
    """Put messages; return code and text of every reply."""
    for opaque in range(count):
        client.send(b"put %s 0 %d 0 %d\r\n%b" % (topic.encode(), len(BODY), opaque, BODY))
    return [(reply.code, reply.text) for reply in client.replies(count)]  # type: ignore[union-attr]


def get(offset: int, topic: str = "orders", size: int = 1_000_000) -> bytes:
    return b"get %s g 0 %d %d 1\r\n" % (topic.encode(), offset, size)


def stats(client: WireClient, item: str) -> list[str]:
    return client.result(b"stats %b 1\r\n" % item.encode())[1].splitlines()[1:-1]


def start_of(client: WireClient) -> int:
    """Where the partition begins, as the reply to a get below it says."""
    code, text = client.result(get(-1))
    assert code == 301
    return int(text)


def segments(broker: RunningBroker) -> list[str]:
    """The names of the segments of the partition."""
    return sorted(path.name for path in (broker.data / "orders-0").glob("*.meta"))


def age(folder: Path, seconds: int) -> None:
    """Make the segments look as if they had last been written so long ago."""
    for segment in folder.glob("*.meta"):
        written_s = time.time() - seconds
        os.utime(segment, (written_s, written_s))


# ---- old segments


def test_deleted_ranges_are_answered_with_301_as_by_the_java_broker(start: Callable[..., RunningBroker]) -> None:
    broker = start(f"deletePolicy=delete,1s\n{EACH_SECOND}")
    client = broker.client()
    replies = put(client, 35)
    assert [code for code, _ in replies] == [200] * 35
    wait_until(lambda: start_of(client) == 3000, "three segments are older than a second")
    for offset in (0, 1, 1000, 2999, -5):
        assert client.result(get(offset)) == (301, "3000")
        assert client.result(b"offset orders g 0 %d 1\r\n" % offset) == (200, "3000")
    assert [frame.offset for frame in walk(client.value(get(3000)), 3000)] == [3000, 3100, 3200, 3300, 3400]
    assert client.result(get(3500)) == (404, "Could not find message at position 3500")
    assert stats(client, "offsets") == ["orders part 0 min_offset 3000 max_offset 3500"]
    assert stats(client, "topics")[0].startswith("orders partitions 1 message_count 5 message_bytes 500 ")
    wait_until(lambda: segments(broker) == ["00000000000000003000.meta"], "their files are gone")
    # the one being written never leaves, however old
    age(broker.data / "orders-0", 3600)
    assert put(client, 1)[0][1].endswith(" 0 3500")
    wait_until(lambda: " deleted 3 " in stats(client, "retention")[0], "it is counted")
    [plan] = stats(client, "retention")
    assert plan.startswith("orders policy delete,1s next_run_ms 1")
    assert plan.endswith(" deleted 3 archived 0 bytes 3000 failures 0")


def test_a_partition_that_begins_behind_zero_survives_stops_and_kills(start: Callable[..., RunningBroker]) -> None:
    broker = start(f"deletePolicy=delete,0\n{EACH_SECOND}")
    client = broker.client()
    put(client, 20)
    wait_until(lambda: start_of(client) == 2000, "two segments leave")
    assert broker.stop() == 0
    broker = start("deletePolicy=delete,1h\n")
    client = broker.client()
    assert (start_of(client), put(client, 15)[0][1].split()[2]) == (2000, "2000")
    broker.kill()
    broker = start(f"deletePolicy=delete,0\n{EACH_SECOND}")
    client = broker.client()
    wait_until(lambda: start_of(client) == 3000, "another one leaves")
    assert len(list(walk(client.value(get(3000))))) == 5
    assert "Traceback" not in broker.log_text()


@pytest.mark.parametrize(("policy", "suffix"), [("archive,1s", ".meta.arc"), ("archive,1s,true", ".meta.zip")])
def test_archived_segments_hold_what_was_put(policy: str, suffix: str, start: Callable[..., RunningBroker]) -> None:
    broker = start(f"deletePolicy={policy}\n{EACH_SECOND}")
    client = broker.client()
    ids = [int(text.split()[0]) for _, text in put(client, 35)]
    wait_until(lambda: segments(broker) == ["00000000000000003000.meta"], "three segments leave")
    archives = sorted((broker.data / "orders-0").glob("*" + suffix))
    assert [path.name for path in archives] == [f"{begin:020d}{suffix}" for begin in (0, 1000, 2000)]
    assert b"".join(map(_content, archives)) == b"".join(encode_frame(number, 0, BODY) for number in ids[:30])
    assert broker.stop() == 0
    assert start_of(start("").client()) == 3000


def _content(archive: Path) -> bytes:
    if archive.suffix == ".arc":
        return archive.read_bytes()
    with zipfile.ZipFile(archive) as packed:
        [name] = packed.namelist()
        assert f"{name}.zip" == archive.name
        return packed.read(name)


def test_reload_changes_when_and_what(start: Callable[..., RunningBroker], tmp_path: Path) -> None:
    broker = start("deletePolicy=delete,1h\ndeleteWhen=0 0 6 * * ? 2099\n")
    client = broker.client()
    put(client, 15)
    age(broker.data / "orders-0", 60)
    file = tmp_path / "server.ini"
    file.write_text(file.read_text() + f"deletePolicy=archive,1s\n{EACH_SECOND}")
    os.kill(broker.process.pid, 1)
    archive = broker.data / "orders-0" / "00000000000000000000.meta.arc"
    wait_until(archive.exists, "the new policy is applied by the new schedule")
    assert start_of(client) == 1000


def test_a_committed_message_stays_one_message_through_deletion_and_kill(start: Callable[..., RunningBroker]) -> None:
    broker = start(f"deletePolicy=delete,0\n{EACH_SECOND}")
    client = broker.client()
    for step in range(3):
        key = b"TX:session:%d" % step
        client.result(b"transaction %b session BEGIN 1\r\n" % key)
        for _ in range(12):
            assert client.result(b"put orders 0 %d 0 %b 1\r\n%b" % (len(BODY), key, BODY))[0] == 200
        assert client.result(b"transaction %b session COMMIT_ONE_PHASE 1\r\n" % key)[0] == 200
    wait_until(lambda: segments(broker) == ["00000000000000003600.meta"], "three units, each a segment, leave")
    broker.kill()
    client = start("deletePolicy=delete,1h\n").client()
    assert (start_of(client), client.result(get(3600))[0]) == (3600, 404)
    assert put(client, 1)[0][1].endswith(" 0 3600")


def test_a_stop_in_the_middle_of_packing_leaves_everything_whole(
    start: Callable[..., RunningBroker], tmp_path: Path
) -> None:
    folder = tmp_path / "data" / "orders-0"
    folder.mkdir(parents=True)
    segment = folder / "00000000000000000000.meta"
    with open(segment, "wb") as file:
        for number in range(48):
            file.write(encode_frame(number + 1, 0, os.urandom(1 << 20)))
    (folder / f"{segment.stat().st_size:020d}.meta").touch()
    size = segment.stat().st_size
    age(folder, 3600)
    broker = start(f"deletePolicy=archive,1s,true\n{EACH_SECOND}")
    wait_until(lambda: any(folder.glob("*.zip*")), "packing has begun")
    assert broker.stop() == 0
    packed = folder / (segment.name + ".zip")
    assert segment.exists() != packed.exists()
    assert not (folder / (segment.name + ".zip.tmp")).exists()
    assert segment.stat().st_size == size if segment.exists() else zipfile.ZipFile(packed).testzip() is None


# ---- a full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("making a small file system needs root")
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", folder], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"no small file system can be made here: {made.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def fill(folder: Path, leave: int) -> Path:
    """Fill the disk until about ``leave`` bytes are free."""
    ballast = folder / "ballast"
    space = os.statvfs(folder)
    ballast.write_bytes(bytes(max(0, space.f_bavail * space.f_frsize - leave)))
    return ballast


@pytest.mark.parametrize("full", [False, True], ids=["nearly full", "full"])
def test_a_full_disk_stops_puts_not_reads_and_they_go_on_by_themselves(
    full: bool, small_disk: Path, start: Callable[..., RunningBroker]
) -> None:
    minimum = 4096 if full else 1 << 20
    broker = start(f"diskFreeMinBytes={minimum}\ndiskCheckInterval=20\n", small_disk / "data")
    client = broker.client()
    assert put(client, 10)[-1][0] == 200
    ballast = fill(small_disk, 0 if full else 512 * 1024)
    refused: list[str] = []

    def is_refused() -> bool:
        refused[:] = [text for code, text in put(client, 1) if code == 500]
        return bool(refused)

    wait_until(is_refused, "puts are refused")
    wait_until(lambda: is_refused() and "Detail:disk is " in refused[0], "with the reason")
    stored = int(stats(client, "offsets")[0].rpartition(" ")[2])
    assert sum(1 for at in range(0, stored, 1000) for _ in walk(client.value(get(at)))) == stored // 100
    assert client.result(b"transaction TX:s:1 s BEGIN 1\r\n")[0] == 200
    code, text = client.result(b"put orders 0 1 0 TX:s:1 1\r\nx")
    assert (code, text.startswith("disk is ")) == (500, True)
    [failure] = stats(client, "failures")
    assert failure.startswith(f"{small_disk / 'data'} puts_refused disk is ")
    ballast.unlink()
    wait_until(lambda: put(client, 1)[0][0] == 200, "puts are accepted again")
    assert stats(client, "failures") == []
    assert broker.log_text().count("puts are refused, the disk is nearly full") == 1
    assert "puts are accepted again" in broker.log_text()


def test_prepared_transactions_are_committed_on_a_nearly_full_disk(
    small_disk: Path, start: Callable[..., RunningBroker]
) -> None:
    broker = start("diskFreeMinBytes=1024*1024\ndiskCheckInterval=20\n", small_disk / "data")
    client = broker.client()
    for key in (b"XID:1:01:01:u", b"XID:1:02:02:u"):
        assert client.result(b"transaction %b s BEGIN 1\r\n" % key)[0] == 200
        assert client.result(b"put orders 0 %d 0 %b 1\r\n%b" % (len(BODY), key, BODY))[0] == 200
    assert client.result(b"transaction XID:1:01:01:u s PREPARE 1\r\n") == (200, "0")
    fill(small_disk, 512 * 1024)
    wait_until(lambda: bool(stats(client, "failures")), "the disk is nearly full")
    code, text = client.result(b"transaction XID:1:02:02:u s PREPARE 1\r\n")
    assert (code, text.startswith("XAException:code=-3,msg=disk is nearly full")) == (500, True)
    assert client.result(b"transaction XID:1:01:01:u s COMMIT_TWO_PHASE 1\r\n") == (200, "")
    assert client.result(b"transaction XID:1:02:02:u s ROLLBACK 1\r\n") == (200, "")
    assert len(list(walk(client.value(get(0))))) == 1
