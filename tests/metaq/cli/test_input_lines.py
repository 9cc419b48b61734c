"""What ``metaq produce`` reads, however it arrives, and what it says of messages that were sent before a failure."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import pytest

from metaq.cli import input_lines, targets
from metaq.cli.input_lines import chunks
from metaq.cli.main import main
from metaq.errors import SendFailed
from metaq.model import Address
from metaq.testing.memory import MemoryBroker


def arriving(data: bytes, sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The lines of a standard input in which ``data`` arrives in pieces of these sizes, again and again."""
    reader, writer = os.pipe()

    def write() -> None:
        at = turn = 0
        with open(writer, "wb", buffering=0) as pipe:
            while at < len(data):
                pipe.write(data[at : at + sizes[turn % len(sizes)]])
                at, turn = at + sizes[turn % len(sizes)], turn + 1

    thread = threading.Thread(target=write)
    thread.start()
    with open(reader) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        found = [line for lines in chunks([], whole=False) for line in lines]
    thread.join()
    return found


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_lines_are_whole_however_they_arrive(end: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(3)
    lines = [chance.randbytes(chance.randrange(40)).replace(b"\n", b"\r") for _ in range(300)] + [bytes(200_000), b"x"]
    assert arriving(b"\n".join(lines) + end, [1, 7, 50, 4096], monkeypatch) == lines
    assert arriving(end, [1], monkeypatch) == ([b""] if end else [])


def test_a_missing_file_is_reported_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1\n2")
    (tmp_path / "b").write_bytes(b"3\n")
    names = [str(tmp_path / "a"), str(tmp_path / "b")]
    assert list(chunks(names, whole=False)) == [[b"1"], [b"2"], [b"3"]]
    assert list(chunks(names, whole=True)) == [[b"1\n2"], [b"3\n"]]
    with pytest.raises(FileNotFoundError):
        next(iter(chunks([*names, str(tmp_path / "c")], whole=False)))
    with pytest.raises(IsADirectoryError) as refused:
        list(chunks([str(tmp_path)], whole=True))
    assert refused.value.filename == str(tmp_path)


def test_input_without_an_end_is_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_lines, "MESSAGE_BYTES_MAX", 1 << 20)
    with pytest.raises(ValueError, match=r"file /dev/zero is longer than 1,048,576 bytes"):
        list(chunks(["/dev/zero"], whole=True))
    with pytest.raises(ValueError, match=r"a line of /dev/zero is longer than 1,048,576 bytes"):
        list(chunks(["/dev/zero"], whole=False))


def test_what_was_acknowledged_before_a_failure_is_counted(
    memory: dict[Address, MemoryBroker], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def send(self: object, lines: object, messages: object) -> None:
        raise SendFailed("orders", "broker a:1 is away", True, ("stored", None, "stored"))

    memory[Address("127.0.0.1", 8123)] = MemoryBroker({"orders": 1})
    monkeypatch.setattr(targets.MetaqTarget, "send", send)
    assert main(["-c", "127.0.0.1:8123", "produce", "orders", "-m", "a", "-m", "b", "-m", "c"]) == 1
    assert capsys.readouterr().err.splitlines()[0] == "2 messages sent to orders"
