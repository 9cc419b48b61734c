"""An ordered producer at a broker with TLS whose lists say who may publish."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fix_broker import DEADLINE_S, RunningBroker, StartBroker
from fix_tls import Certificates, ini_text

from metaq import MetaQ
from metaq.testing.ports import free_port

pytestmark = pytest.mark.process


def test_what_it_may_not_send_yet_waits_and_is_sent_once(
    start_broker: StartBroker, tmp_path: Path, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    file, port = tmp_path / "server.ini", free_port()

    def start(publisher: str) -> RunningBroker:
        keys = f"{certificates.server_keys}tlsClientCaFile={certificates.ca_file}\n"
        file.write_text(ini_text(tmp_path / "data", keys, f"[topic=t]\nallowPublish={publisher}\n"))
        return start_broker("start", "-f", file, "--port", str(port))

    broker = start("shop")
    with MetaQ(str(broker.address), tls=certificates.client("shop")) as mq:
        with mq.ordered_producer({"t": "0:1"}, tmp_path / "spool", retry_s=1000) as producer:
            assert producer.send("t", "0") is not None
            broker.kill()
            assert producer.send("t", "1") is None
            broker = start("billing")
            assert not producer.recover(1)
            assert producer.send("t", "2") is None
            assert re.search(r"messages for t/0-0 wait in .*client shop may not publish to topic t", caplog.text)
            broker.kill()
            broker = start("shop")
            assert producer.recover(DEADLINE_S)
            assert producer.send("t", "3") is not None
        with mq.ordered_producer({"t": "0:1"}, tmp_path / "spool") as producer:
            assert producer.spooled == {}
        assert [message.data for message in mq.browse("t")] == [b"0", b"1", b"2", b"3"]
