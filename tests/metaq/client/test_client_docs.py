"""The examples of the client's two pages run as they stand, one after the other, against a real broker."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fix_broker import DEADLINE_S, RunningBroker, first_line
from fix_tls import Certificates

from metaq import MetaQ

DOCS = Path(__file__).parents[3] / "docs"
PAGES = [DOCS / "client.md", DOCS / "client-internals.md"]
EXAMPLES = [
    (page, example) for page in PAGES for example in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
]


@pytest.mark.process
@pytest.mark.usefixtures("pools_closed")
def test_the_examples_run(
    dev_broker: RunningBroker,
    certificates: Certificates,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    mine = certificates.authority.issue_cert("localhost")
    mine.private_key_and_cert_chain_pem.write_to_path("me.pem")
    Path("ca.pem").write_text(Path(certificates.ca_file).read_text())
    names: dict[str, object] = {}
    rocketmq = str(dev_broker.rocketmq_address)
    for page, example in EXAMPLES:
        text = example.replace("127.0.0.1:8123", str(dev_broker.address)).replace("127.0.0.1:10911", rocketmq)
        exec(compile(text, str(page), "exec"), names)
    printed = capsys.readouterr().out
    assert "0-0 0 created b'first order'" in printed
    assert "bytes of messages" in printed
    assert printed.count("created b'first order'") == 5, "once as one of all, once by its type"
    assert "messages; the middle one is at" in printed
    assert re.search(r"handled b'.*' at attempt 2", printed)
    assert "hot ('order-1',) b'one tea'" in printed
    assert "\ncommitted\n" in printed
    assert "a scone is b'4.20'" in printed
    assert len(EXAMPLES) == 27


@pytest.mark.process
def test_ctrl_c_ends_the_consumer_of_the_page_without_a_traceback(dev_broker: RunningBroker) -> None:
    (example,) = (text for _, text in EXAMPLES if "suppress(KeyboardInterrupt)" in text)
    assert example.count("consumer.stop()") == 1
    endless = example.replace("consumer.stop()", "pass").replace("127.0.0.1:8123", str(dev_broker.address))
    with MetaQ(str(dev_broker.address)) as mq:
        mq.producer().send("orders", b"one tea")
    command = [sys.executable, "-u", "-c", f"from metaq import MetaQ\n{endless}"]
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as ran:
        assert first_line(ran) == "0 b'one tea'\n"
        ran.send_signal(signal.SIGINT)
        assert ran.communicate(timeout=DEADLINE_S) == ("", "")
    assert ran.returncode == 0
