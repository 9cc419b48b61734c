"""A broker and the name servers that it registers with: those that come later, and those that come back."""

from __future__ import annotations

from pathlib import Path

import pytest
from broker_thread import broker_thread
from fix_broker import free_port, wait_until
from name_server import RunningNameServer, running_name_server


def test_a_name_server_that_comes_later_or_comes_back_knows_the_broker_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After some pauses, and not after the usual half a minute."""
    monkeypatch.setattr("metaq_broker.rocketmq.registration.AGAIN_S", 0.1)
    port, of_broker = free_port(), free_port()
    section = (
        f"[topic=orders]\n[zookeeper]\nzk.zkEnable=false\n[rocketmq]\nenabled=true\nport={of_broker}\n"
        f"brokerName=a\nbrokerIP1=127.0.0.1\nnamesrvAddr=127.0.0.1:{port}\n"
    )

    def knows(server: RunningNameServer) -> bool:
        return server.do(lambda: server.server.routes.route("orders") is not None)

    with broker_thread(tmp_path / "broker", section):
        for moment in ("later", "again"):
            with running_name_server(tmp_path, f"listenPort={port}\n") as server:
                wait_until(lambda server=server: knows(server), f"it is known {moment}", 15.0)  # type: ignore[misc]
