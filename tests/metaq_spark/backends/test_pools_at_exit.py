"""The pools that a whole process shares leave no socket open when the interpreter ends."""

from __future__ import annotations

import subprocess
import sys

import pytest
from fix_broker import RunningBroker

pytestmark = pytest.mark.process

PROGRAM = """
import sys
from metaq.backends.metaq.pool import shared_pool
from metaq.model import Address
from metaq.net.transport import Timeouts
from metaq_spark.backends.metaq.cluster import pool_with
from metaq_spark.backends.rocketmq.connections import pool_of

address = Address.parse(sys.argv[2])
pool = {
    "shared": shared_pool,
    "metaq": lambda: pool_with(Timeouts()),
    "rocketmq": lambda: pool_of(Timeouts(), None, None),
}[sys.argv[1]]()
with pool.lease(address):
    pass
assert pool.idle_count(address) == 1
"""


@pytest.mark.parametrize("kind", ["shared", "metaq", "rocketmq"])
def test_idle_sessions_are_closed(kind: str, dev_broker: RunningBroker) -> None:
    address = dev_broker.rocketmq_address if kind == "rocketmq" else dev_broker.address
    command = [sys.executable, "-W", "error::ResourceWarning", "-c", PROGRAM, kind, str(address)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
