"""A broker with a front end for RocketMQ that is stopped or killed and started again on the same folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fix_broker import RunningBroker, StartBroker, run_broker_command, write_ini

from metaq.client.partitioners import fixed
from metaq.client.rocketmq.client import RocketMQ
from metaq.model import Address


class RestartedBroker:
    """One broker after another on the same folder."""

    def __init__(self, start_broker: StartBroker, folder: Path, ini: str, **keys: object) -> None:
        """``ini`` is what stands behind ``[system]``, ``keys`` are some of that."""
        self._start_broker, self.data = start_broker, folder / "data"
        self._file = write_ini(folder, ini, **{"hostName": "127.0.0.1"} | keys)
        self.broker: RunningBroker
        self.address: Address

    def start(self) -> str:
        """Return what the log says at the start."""
        self.broker = self._start_broker("start", "-f", self._file)
        self.address = self.broker.rocketmq_address
        return self.broker.log_text()

    def stop(self) -> None:
        assert self.broker.stop() == 0

    def kill(self) -> None:
        self.broker.kill()

    def ctl(self, *arguments: str) -> str:
        """Return what ``metaq-broker ctl`` prints."""
        done = run_broker_command("ctl", "--data", self.data, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def bodies(self, topic: str = "t") -> list[bytes]:
        with RocketMQ(str(self.address)) as rocketmq:
            return [bytes(each.data) for each in rocketmq.browse(topic)]

    def send(self, queue: int, *bodies: str, **more: Any) -> list[str]:
        """Return the ids that the broker gave."""
        with RocketMQ(str(self.address)) as rocketmq:
            producer = rocketmq.producer(fixed(queue))
            sent = [producer.send("t", body, **more) for body in bodies]
        return [each.offset_message_id for each in sent]
