"""The lines of docs/http.md, with a broker and a server of the test's."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from http_server import serving

from metaq.testing.broker_process import BrokerProcess

PAGE = Path(__file__).parents[2] / "docs" / "http.md"
START = "python -m metaq_console --cluster 127.0.0.1:8123 --write"
VARYING = {"ID": r"\d+", "TIME": r"\d+", "SECONDS": r"[\d.e-]+"}

pytestmark = pytest.mark.process


def examples() -> list[tuple[str, str]]:
    """The commands of the page's console block, each with what it prints."""
    [block] = re.findall(r"^```console\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    parts = [part.partition("\n") for part in block.split("$ ") if part]
    return [(command, output) for command, _, output in parts]


def expected(text: str) -> str:
    """A pattern for what is printed: some values differ each time."""
    pattern = re.escape(text.rstrip("\n"))
    for word, values in VARYING.items():
        pattern = re.sub(rf"\b{word}\b", lambda match: values, pattern)  # noqa: B023 - called at once
    return pattern


def test_the_lines_do_what_the_page_shows(metaq_broker: BrokerProcess) -> None:
    assert START in PAGE.read_text()
    found = examples()
    assert len(found) == 3
    with serving(*START.replace("127.0.0.1:8123", metaq_broker.cluster).split()[3:]) as url:
        for command, output in found:
            done = subprocess.run(
                ["bash", "-c", command.replace("http://127.0.0.1:8120", url)],
                capture_output=True,
                text=True,
                timeout=60,
            )
            assert re.fullmatch(expected(output), done.stdout), (command, done.stdout)
