"""The paths of MetaQ's own HTTP server, as its Java client uses them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from starlette.testclient import TestClient

from metaq.formats.checksum import checksum
from metaq.formats.frames import walk
from metaq.testing.broker_process import BrokerProcess
from metaq.testing.memory_server import MemoryServer

if TYPE_CHECKING:
    from fix_console import StartConsole


def put(console: TestClient, body: bytes, **changed: object) -> tuple[int, str]:
    values = {"topic": "orders", "partition": 0, "flag": 0, "length": len(body)} | changed
    answer = console.post("/put/0", params=values, content=body)  # type: ignore[arg-type]
    return answer.status_code, answer.text


def test_a_message_is_put_and_got(console: TestClient) -> None:
    code, text = put(console, b"one tea", checksum=checksum(b"one tea"))
    message_id, partition, offset = text.split(" ")
    assert (code, partition, offset) == (200, "0", "0")
    query = {"topic": "orders", "partition": 0, "offset": 0, "group": "g", "maxsize": 99999}
    answer = console.get("/get/0", params=query)
    [frame] = walk(answer.content, 0)
    assert (frame.message.payload, frame.message_id) == (b"one tea", int(message_id))
    assert answer.headers["content-type"] == "application/octet-stream"


def test_the_end_is_404_and_an_offset_that_is_gone_301(console: TestClient) -> None:
    put(console, b"one tea")
    query = {"topic": "orders", "partition": 0, "group": "g", "maxsize": 100}
    answer = console.get("/get/0", params=query | {"offset": 27})
    assert (answer.status_code, answer.text) == (404, "Could not find message at position 27")
    answer = console.get("/get", params=query | {"offset": -1}, follow_redirects=False)
    assert (answer.status_code, answer.text, answer.headers.get("location")) == (301, "0", None)


def test_an_offset_is_the_end_of_the_partition(console: TestClient) -> None:
    put(console, b"one tea")
    query = {"topic": "orders", "partition": 0, "offset": 2**63 - 1}  # Java's client names no group
    assert console.get("/offset/0", params=query).text == "27"


@pytest.mark.parametrize(
    ("changed", "code", "start"),
    [
        ({"topic": ""}, 400, "parameter topic: is missing"),
        ({"topic": "a b"}, 400, "parameter topic: 'a b'; expected a word without blanks"),
        ({"topic": "a\r\nquit"}, 400, "parameter topic: 'a\\r\\nquit'; expected a word without blanks"),
        ({"partition": "x"}, 400, "parameter partition: 'x'; expected a number, -2147483648..2147483647"),
        ({"length": 3}, 400, "parameter length: 3; the body has 7 bytes"),
        ({"checksum": 1}, 500, "Put message to "),
        ({"partition": 7}, 500, "Put message to "),
    ],
)
def test_a_put_that_is_wrong(console: TestClient, changed: dict[str, object], code: int, start: str) -> None:
    status, text = put(console, b"one tea", **changed)
    assert status == code
    assert text.startswith(start)


@pytest.mark.process
def test_a_real_broker_chooses_a_partition_and_counts(metaq_broker: BrokerProcess, start_console: StartConsole) -> None:
    console = start_console(metaq_broker.cluster, write=True)
    code, text = put(console, b"one tea", partition=-1)
    assert (code, text.split(" ")[1:]) == (200, ["0", "0"])
    assert console.get("/stats").text.startswith("STATS\r\n")
    assert "orders partitions 1 message_count 1" in console.get("/stats/topics").text
    assert console.get("/stats/a%0D%0Ab").status_code == 400


def test_what_changes_something_needs_write(metaq_memory: MemoryServer, start_console: StartConsole) -> None:
    console = start_console(metaq_memory.cluster)
    assert put(console, b"one tea")[0] == 403
    assert console.get("/stats/reset").status_code == 403
    assert metaq_memory.client().cluster.topics() == {}


@pytest.mark.parametrize("headers", [{"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}])
@pytest.mark.parametrize("path", ["/stats/reset", "/stats/%72eset"])
def test_a_page_of_another_site_resets_no_statistics(
    metaq_broker: BrokerProcess, start_console: StartConsole, path: str, headers: dict[str, str]
) -> None:
    console = start_console(metaq_broker.cluster, write=True)
    answer = console.get(path, headers=headers)
    assert (answer.status_code, "a page of another site" in answer.text) == (403, True)
    assert console.head(path, headers=headers).status_code == 403
    assert console.get("/stats/topics", headers=headers).status_code == 200
    assert "reset ok" in console.get("/stats/reset").text


def test_a_broker_that_is_away_is_said_in_a_sentence(metaq_memory: MemoryServer, start_console: StartConsole) -> None:
    console = start_console(metaq_memory.cluster, question_s=2.0)
    metaq_memory.stop()
    answer = console.get("/stats")
    assert answer.status_code == 502
    assert answer.text.startswith(f"broker {metaq_memory.cluster}: connect failed")
