"""Sends the requests of a recording to a real broker of RocketMQ 4.9.7 anew, and writes down what it answers.

    PYTHONPATH=.:broker:tests/support python tests/support/record_requests.py requests.jsonl

A new step is a line with a ``step`` and no ``reply``; see ``request_replay``.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Final

from recordings import ROCKETMQ
from request_replay import Replay

from metaq.model import Address
from peers.rocketmq.jars import release
from peers.rocketmq.servers import Cluster

SETTLE_S: Final = 4.0
"""A broker that has just started finds nothing by key for a while."""


def main(name: str) -> int:
    """Write the file anew."""
    path = ROCKETMQ / name
    steps = [json.loads(line)["step"] for line in path.read_text("utf-8").splitlines()]
    with tempfile.TemporaryDirectory() as folder, Cluster(release("4.9.7"), Path(folder)) as cluster:
        cluster.start_name_server()
        broker = cluster.start_broker("golden-a", brokerClusterName="GoldenCluster", autoCreateTopicEnable="true")
        time.sleep(SETTLE_S)
        with closing(Replay(Address.parse(broker.address))) as replay:
            recorded = [{"step": step, "reply": replay.play(step)} for step in steps]
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in recorded)
        path.write_text(text.replace(broker.address, "${broker}"), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
