"""Reading from the broker's own files: the same bytes as from the network, and the network wherever that is not so."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from fix_broker import RunningBroker, StartBroker, write_ini
from fix_client import TIMEOUTS, Restarts, scripted_session
from leaks import open_files

from metaq.backends.metaq import local_file
from metaq.backends.metaq.puts import encode_block, put_batch
from metaq.backends.metaq.range_reader import lend_range, read_range
from metaq.backends.metaq.session import Session
from metaq.errors import BrokerError, ConnectionFailed, CorruptFrame, DataMissing, OffsetMoved, ProtocolError
from metaq.formats.frames import walk
from metaq.model import Message, OffsetRange
from metaq.net.machine import boot_id
from metaq.protocols.file_location import FileLocation, encode_file_location
from metaq.protocols.text.commands import Result, Stats
from metaq.protocols.text.encode import encode
from metaq.protocols.text.extensions import version_text
from metaq.testing.scripted import Expect, Say

pytestmark = pytest.mark.process

SEGMENT_BYTES = 200_000
MESSAGES = 30
BODY_BYTES = 70_000


def contents(number: int) -> bytes:
    return bytes([number]) * BODY_BYTES


@pytest.fixture
def broker(start_broker: StartBroker, tmp_path: Path) -> RunningBroker:
    """Partition 0 of t: thirty messages of 70,000 bytes, three to a segment."""
    ini = write_ini(tmp_path, "[topic=t]\n", maxSegmentSize=SEGMENT_BYTES, maxTransferSize=50000)
    running = start_broker("start", "-f", ini)
    with closing(Session.connect(running.address, TIMEOUTS)) as session:
        for number in range(MESSAGES):
            put_batch(session, "t", 0, *encode_block([Message(contents(number))]))
    return running


@pytest.fixture
def session(broker: RunningBroker) -> Iterator[Session]:
    with closing(Session.connect(broker.address, TIMEOUTS)) as session:
        yield session


@pytest.fixture(autouse=True)
def any_range_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_file, "BYTES_MIN", 1)


END = MESSAGES * (BODY_BYTES + 20)


def read(session: Session, start: int = 0, end: int = END, fetch_bytes: int = 1 << 20) -> list[bytes]:
    runs = read_range(session, "t", 0, OffsetRange(start, end), fetch_bytes, retry_interval_s=0.05, local=True)
    return [frame.message.payload for run in runs for frame in walk(run.data, run.offset)]


def gets(session: Session) -> int:
    """How many gets the broker has answered so far."""
    return int(session.ask(Stats("", 0)).partition("cmd_get ")[2].split()[0])


def segments(broker: RunningBroker) -> list[Path]:
    return sorted((broker.data / "t-0").glob("*.meta"))


ALL = [contents(number) for number in range(MESSAGES)]


@pytest.mark.parametrize("fetch_bytes", [1000, 70_021, 1 << 20])
def test_all_messages_come_without_one_get(session: Session, fetch_bytes: int) -> None:
    before = open_files()
    assert read(session, fetch_bytes=fetch_bytes) == ALL
    assert gets(session) == 0
    assert open_files() == before


def test_a_range_that_ends_inside_a_frame_has_that_frame(session: Session) -> None:
    assert read(session, 70_020, 140_041) == ALL[1:3]
    assert gets(session) == 0


def test_small_ranges_are_sent(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_file, "BYTES_MIN", END + 1)
    assert read(session) == ALL
    assert gets(session) > 0


def test_who_does_not_ask_for_it_gets_it_sent(session: Session) -> None:
    runs = read_range(session, "t", 0, OffsetRange(0, END))
    assert sum(len(run.data) for run in runs) == END
    assert gets(session) > 0


def test_a_reader_that_stops_in_the_middle_leaves_no_file_open(session: Session) -> None:
    before = open_files()
    runs = lend_range(session, "t", 0, OffsetRange(0, END), 1000, local=True)
    next(runs)
    assert (open_files() - before).total() == 1
    runs.close()
    assert open_files() == before


def test_a_file_that_was_replaced_is_not_read(broker: RunningBroker, session: Session) -> None:
    """Only what the broker has open is true."""
    assert read(session) == ALL  # the broker has them open from now on
    path = segments(broker)[2]
    other = path.with_suffix(".copy")
    other.write_bytes(b"\xff" * path.stat().st_size)
    other.rename(path)
    assert read(session) == ALL
    assert gets(session) > 0


def test_a_range_that_is_gone_is_moved(broker: RunningBroker, session: Session) -> None:
    with pytest.raises(OffsetMoved):
        read(session, -5, 100)


def test_a_range_that_is_not_there_yet_is_missing(session: Session) -> None:
    with pytest.raises(DataMissing):
        read(session, 0, END + 20)


def test_an_impossible_header_is_corrupt(broker: RunningBroker, session: Session) -> None:
    with open(segments(broker)[0], "r+b") as file:
        file.seek(70_020)
        file.write(b"\xff")
    with pytest.raises(CorruptFrame) as damage:
        read(session)
    assert damage.value.offset == 70_020


def test_a_file_that_is_cut_while_it_is_read_is_asked_of_the_broker(broker: RunningBroker, session: Session) -> None:
    runs = lend_range(session, "t", 0, OffsetRange(0, 210_060), 80_000, local=True, retries=0)
    assert len(next(runs).data) == 70_020
    with open(segments(broker)[0], "r+b") as file:
        file.truncate(80_000)
    with pytest.raises(ConnectionFailed, match="get of t partition 0 at offset 80000"):
        list(runs)


def test_what_is_open_can_be_read_after_it_was_deleted(broker: RunningBroker, session: Session) -> None:
    runs = lend_range(session, "t", 0, OffsetRange(0, 210_060), 80_000, local=True)
    assert len(next(runs).data) == 70_020
    segments(broker)[0].unlink()
    assert sum(len(run.data) for run in runs) == 140_040


def test_a_broker_that_restarts_meanwhile_is_asked_again(start_broker: StartBroker, tmp_path: Path) -> None:
    restarts = Restarts(start_broker, tmp_path)
    block, count = encode_block([Message(bytes([number]) * 30_000) for number in range(40)])
    with closing(Session.connect(restarts.running.address, TIMEOUTS)) as session:
        put_batch(session, "t", 0, block, count)
        runs = lend_range(
            session, "t", 0, OffsetRange(0, len(block)), 40_000, local=True, retries=20, retry_interval_s=0.1
        )
        found = []
        for number, run in enumerate(runs):
            found += [frame.message.payload[0] for frame in walk(run.data, run.offset)]
            if number in (2, 12, 20):
                restarts.kill_and_start()
        assert found == list(range(40))


# ---- what a broker may say


VERSION = Expect(b"version 1\r\n"), Say(encode(Result(200, version_text("9", ["file"]), 1)))
QUESTION = Expect(b"offset t metaq-spark 0 0 2 file\r\n")
SENT = Expect(b"get t metaq-spark 0 0 21 3\r\n"), Say(b"value 21 3\r\n" + encode_block([Message(b"x")])[0])
SENT_AGAIN = Expect(b"get t metaq-spark 0 0 21 4\r\n"), Say(b"value 21 4\r\n" + encode_block([Message(b"x")])[0])


def says(text: str, code: int = 200) -> Say:
    return Say(encode(Result(code, text, 2)))


def place_of(file: Path, **other: object) -> str:
    status = file.stat()
    place = FileLocation(0, 21, status.st_dev, status.st_ino, boot_id() or "", str(file))
    return encode_file_location(place._replace(**other))  # type: ignore[arg-type]


SEGMENT = "00000000000000000000.meta"


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    path = tmp_path / "t-0" / SEGMENT
    path.parent.mkdir()
    path.write_bytes(encode_block([Message(b"y")])[0])
    return path


def test_the_file_that_is_named_is_read(segment: Path) -> None:
    session, _ = scripted_session(*VERSION, QUESTION, says(place_of(segment)))
    assert read(session, 0, 21) == [b"y"]


def _named(path: Path, name: str) -> Path:
    return path.rename(path.with_name(name))


def _folder(path: Path) -> Path:
    folder = path.with_name("00000000000000000001.meta")
    folder.mkdir()
    return folder


def _pipe(path: Path) -> Path:
    pipe = path.with_name("00000000000000000001.meta")
    os.mkfifo(pipe)
    return pipe


def _secret(path: Path) -> Path:
    """A file of somebody else, made of valid messages, so that only its place tells that it is not the partition's."""
    secret = path.parents[1] / "secret"
    secret.write_bytes(encode_block([Message(b"s")])[0])
    return secret


def _link(path: Path, make: Callable[[Path, Path], None]) -> str:
    secret, link = _secret(path), path.with_name("00000000000000000001.meta")
    make(secret, link)
    return place_of(secret, path=str(link))


def _through(path: Path, name: str) -> str:
    """The secret by a path that goes through the partition's folder."""
    return place_of(_secret(path), path=f"{path.parent}/{name}")


WRONG: dict[str, Callable[[Path], str]] = {
    "another machine": lambda path: place_of(path, boot="another"),
    "another file": lambda path: place_of(path, inode=1),
    "another disk": lambda path: place_of(path, device=1),
    "no file": lambda path: place_of(path, path=str(path.with_suffix(".new.meta"))),
    "no segment": lambda path: place_of(_named(path, "00000000000000000000.log")),
    "a short name": lambda path: place_of(_named(path, "0.meta")),
    "another partition": lambda path: place_of(path.parent.rename(path.parents[1] / "t-1") / SEGMENT),
    "a secret": lambda path: place_of(_secret(path)),
    "a secret upwards": lambda path: _through(path, "../secret"),
    "a secret below a name": lambda path: _through(path, f"{SEGMENT}/../../secret"),
    "a symbolic link": lambda path: _link(path, lambda secret, link: link.symlink_to(secret)),
    "a second name": lambda path: _link(path, lambda secret, link: link.hardlink_to(secret)),
    "this process": lambda path: place_of(Path("/proc/self/environ")),
    "a device": lambda path: place_of(Path("/dev/zero")),
    "a pipe": lambda path: place_of(_pipe(path)),
    "a folder": lambda path: place_of(_folder(path)),
    "no name of a file": lambda path: place_of(path, path=f"{path}\0.meta"),
    "behind its end": lambda path: place_of(path, position=500),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_read_here_is_sent(segment: Path, case: str) -> None:
    before = open_files()
    session, _ = scripted_session(*VERSION, QUESTION, says(WRONG[case](segment)), *SENT)
    assert read(session, 0, 21) == [b"x"]
    assert open_files() == before


def test_a_file_that_is_exchanged_after_the_answer_is_not_read(segment: Path) -> None:
    answer, other = place_of(segment), _secret(segment)
    other.rename(segment)
    session, _ = scripted_session(*VERSION, QUESTION, says(answer), *SENT)
    assert read(session, 0, 21) == [b"x"]


def test_a_length_that_is_a_lie_reads_no_more_than_there_is(segment: Path) -> None:
    session, _ = scripted_session(*VERSION, QUESTION, says(place_of(segment, length=1 << 60)))
    assert read(session, 0, 21) == [b"y"]


def test_what_is_in_a_wrong_file_is_in_no_error(segment: Path) -> None:
    segment.write_bytes(b"a secret that is no message" * 100)
    session, _ = scripted_session(*VERSION, QUESTION, says(place_of(segment)))
    with pytest.raises(CorruptFrame) as corrupt:
        read(session, 0, 21)
    assert "secret" not in str(corrupt.value)


@pytest.mark.parametrize("refused", [says("not here", 503), None])
def test_a_broker_of_another_machine_is_asked_once_in_a_connection(segment: Path, refused: Say | None) -> None:
    answer = refused or says(place_of(segment, boot="another"))
    session, _ = scripted_session(*VERSION, QUESTION, answer, *SENT, *SENT_AGAIN)
    assert [read(session, 0, 21), read(session, 0, 21)] == [[b"x"], [b"x"]]


def test_a_refusal_for_now_is_no_refusal_for_good(segment: Path) -> None:
    again = Expect(b"offset t metaq-spark 0 0 4 file\r\n"), Say(encode(Result(200, place_of(segment), 4)))
    session, _ = scripted_session(*VERSION, QUESTION, says("closed", 403), *SENT, *again)
    assert [read(session, 0, 21), read(session, 0, 21)] == [[b"x"], [b"y"]]


def test_a_refused_get_is_reported(segment: Path) -> None:
    refusal = Expect(b"get t metaq-spark 0 0 21 3\r\n"), Say(encode(Result(403, "closed", 3)))
    session, _ = scripted_session(*VERSION, QUESTION, says("closed", 403), *refusal)
    with pytest.raises(BrokerError, match="closed"):
        read(session, 0, 21)


def test_a_broker_without_the_extension_is_not_asked() -> None:
    version = Expect(b"version 1\r\n"), Say(encode(Result(200, "1.4.6.2", 1)))
    get = Expect(b"get t metaq-spark 0 0 21 2\r\n"), Say(b"value 21 2\r\n" + encode_block([Message(b"x")])[0])
    session, _ = scripted_session(*version, *get)
    assert read(session, 0, 21) == [b"x"]


def test_a_malformed_answer_closes_the_session() -> None:
    session, _ = scripted_session(*VERSION, QUESTION, says("17"))
    with pytest.raises(ProtocolError, match="the file of a partition: '17': expected POSITION LENGTH"):
        read(session, 0, 21)
    assert session.closed


def test_a_system_without_boot_ids_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_file, "boot_id", lambda: None)
    get = Expect(b"get t metaq-spark 0 0 21 1\r\n"), Say(b"value 21 1\r\n" + encode_block([Message(b"x")])[0])
    session, _ = scripted_session(*get)
    assert read(session, 0, 21) == [b"x"]
