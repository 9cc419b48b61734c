"""Lines through a pipe: ``metaq produce`` and ``metaq consume``, real processes, unchanged, for both protocols.

``METAQ_PIPE_LINES`` says how many lines; ``make test-pipe`` sends a million.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from metaq.testing.broker_process import BrokerProcess

pytestmark = [pytest.mark.process, pytest.mark.slow]

LINES = int(os.environ.get("METAQ_PIPE_LINES") or 5_000)
METAQ = [sys.executable, "-m", "metaq.cli.main"]
ODD = [b"", b"\r", b"cr\r", b"\x00", b"\xff\xfe \x80", "日本 \u2028".encode(), b" blanks \t", b"%v\\n"]
ODD += [b"long " * 60_000, b"", b""]
WITHOUT_END = b"no line end"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("pipe")) as made:
        yield made


def lines() -> Iterator[bytes]:
    """All lines, a thousand in a block; the odd ones stand among the others. The last one has no end."""
    usual = LINES - len(ODD) - 1
    for start in range(0, usual, 1000):
        some = [b"%d the quick brown fox \xc3\xa9" % number for number in range(start, min(start + 1000, usual))]
        yield b"".join(line + b"\n" for line in ([*some, *ODD] if start == 0 else some))
    yield WITHOUT_END


def feed(pipe: IO[bytes]) -> None:
    with pipe:
        for block in lines():
            pipe.write(block)


def digest_of(blocks: Iterator[bytes]) -> str:
    found = hashlib.sha256()
    for block in blocks:
        found.update(block)
    return found.hexdigest()


@pytest.mark.parametrize("protocol", ["metaq", "rocketmq"])
def test_lines_pass_unchanged(broker: BrokerProcess, protocol: str, tmp_path: Path) -> None:
    is_metaq = protocol == "metaq"
    cluster = str(broker.address) if is_metaq else f"rocketmq://{broker.name_servers}"
    environment = {**os.environ, "METAQ_CLUSTER": cluster}
    topics = f"{protocol}-sent", f"{protocol}-copied"
    first = "0-0" if is_metaq else "metaq:0"

    def start(*arguments: str, stdin: int | IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*METAQ, *arguments], env=environment, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    with start("produce", topics[0], "-p", first, stdin=subprocess.PIPE) as sending:
        assert sending.stdin is not None
        feed(sending.stdin)
        sending.stdin = None
        reported = sending.communicate()[1]
        assert (sending.returncode, reported) == (0, f"{LINES:,} messages sent to {topics[0]}\n".encode())
    with start("consume", topics[0], stdin=subprocess.DEVNULL) as showing:
        with start("produce", topics[1], "-p", first, stdin=showing.stdout or 0) as copying:
            assert showing.stdout is not None
            showing.stdout.close()
            reported = copying.communicate()[1]
        assert (copying.returncode, reported) == (0, f"{LINES:,} messages sent to {topics[1]}\n".encode())
        assert showing.stderr is not None
        assert (showing.wait(), showing.stderr.read()) == (0, b"")
    with start("consume", topics[1], stdin=subprocess.DEVNULL) as showing:
        assert showing.stdout is not None
        shown = digest_of(iter(lambda: showing.stdout.read(1 << 20), b""))  # type: ignore[union-attr]
    assert showing.returncode == 0
    assert shown == digest_of(block for block in (*lines(), b"\n"))
