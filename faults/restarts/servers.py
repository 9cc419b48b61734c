"""The broker that restarts, for RocketMQ with a name server of its own, and its messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from faults.broker_process import BrokerProcess, ServerSettings
from faults.remoting_fuzz.name_server import NameServerProcess
from faults.restarts.query import SOURCE, TARGET
from metaq.backends.metaq.puts import encode_block, put_batch
from metaq.backends.metaq.session import Session
from metaq.client.metaq import MetaQ
from metaq.client.rocketmq.client import RocketMQ
from metaq.model import Message
from metaq.net.transport import Timeouts

PARTITIONS: Final = 2
PAYLOAD_BYTES: Final = 2000
_TIMEOUTS: Final = Timeouts(10.0, 60.0)


class Servers:
    """``close`` ends them."""

    def __init__(self, folder: Path, format_name: str) -> None:
        """Start the servers.

        Raises:
            BrokerTrouble: One does not become ready.
        """
        self._name_server: NameServerProcess | None = None
        topics, namesrv = {SOURCE: PARTITIONS, TARGET: PARTITIONS}, ""
        if format_name == "rocketmq":
            self._name_server = NameServerProcess(folder / "name-server")
            namesrv = str(self._name_server.start())
        self._namesrv = namesrv
        settings = ServerSettings(topics, rocketmq=bool(namesrv), name_server=namesrv, segment_bytes_max=8 << 20)
        self.broker = BrokerProcess(folder / "broker", settings)
        self.broker.start()
        self.fed = 0

    @property
    def options(self) -> Mapping[str, str]:
        """The query's options for finding the broker."""
        if self._namesrv:
            return {"nameServers": self._namesrv}
        return {"brokers": str(self.broker.address)}

    def feed(self, count: int) -> None:
        """Put ``count`` messages into the source, with consecutive numbers.

        Raises:
            MetaqError: The broker refuses them.
        """
        session = Session.connect(self.broker.address, _TIMEOUTS)
        try:
            for index in range(PARTITIONS):
                numbers = range(self.fed + index, self.fed + count, PARTITIONS)
                messages = (Message(b"%010d" % number + bytes(PAYLOAD_BYTES)) for number in numbers)
                put_batch(session, SOURCE, index, *encode_block(messages))
        finally:
            session.close()
        self.fed += count

    def copies(self) -> Counter[int]:
        """Return how often each number is in the target.

        Raises:
            MetaqError: The broker cannot be read.
        """
        client = RocketMQ(self._namesrv) if self._namesrv else MetaQ(str(self.broker.address))
        with client as mq:
            return Counter(int(message.data[:10]) for message in mq.browse(TARGET))

    def close(self) -> None:
        self.broker.kill()
        if self._name_server is not None:
            self._name_server.kill()
