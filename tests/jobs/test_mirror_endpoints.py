"""The endpoints of a mirror, without Spark."""

from __future__ import annotations

import gc
from pathlib import Path

from mirror_topics import Mirror, parse_arguments

from metaq.model import Partition
from metaq.testing.rocketmq_server import ScriptedCluster


def test_a_mirror_that_is_closed_leaves_no_connection(tmp_path: Path) -> None:
    with ScriptedCluster() as there, ScriptedCluster() as here:
        for cluster in (there, here):
            cluster.create_topic("trades", queues=2)
        ends = ["--from-rocketmq", str(there.name_servers[0]), "--to-rocketmq", str(here.name_servers[0])]
        with Mirror(parse_arguments([*ends, "--topics", "trades", "--checkpoint", str(tmp_path)])) as mirror:
            mirror.settle_targets()
            assert set(mirror.source.sources("trades")) == {Partition("broker-a", 0), Partition("broker-a", 1)}
        del mirror
        gc.collect()  # an open socket would be an error
