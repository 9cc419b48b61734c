"""A master and its slave, each a process, and the loss of the master: the slave is promoted."""

from __future__ import annotations

from pathlib import Path

from fix_broker import StartBroker, run_broker_command, wait_until, write_ini

from metaq.backends.metaq.puts import put
from metaq.backends.metaq.session import Session
from metaq.errors import BrokerError
from metaq.model import Address, Message
from metaq.net.transport import Timeouts
from metaq.testing.ports import free_port

TIMEOUTS = Timeouts(5.0, 10.0)
OTHERS = "others"
"""The topic of messages that only find out whether a broker takes any."""


class PromotedPair:
    """Broker 4: the master and the slave of a synchronous pair, or a master and its asynchronous slave."""

    def __init__(self, start: StartBroker, folder: Path, *, is_pair: bool, topic: str = "t") -> None:
        at_master, at_slave = free_port(), free_port()
        self._folder = folder
        self.addresses = [Address("127.0.0.1", at_master), Address("127.0.0.1", at_slave)]
        """Of the master and of the slave."""
        of_master = f"[samsa]\nslave={self.addresses[1]}\ncheckSlaveIntervalInMills=20\n" if is_pair else ""
        of_slave = f"[gregor]\nmaster={self.addresses[0]}\n"
        if not is_pair:
            of_slave = f"[slave]\nslaveId=0\nmaster={self.addresses[0]}\nslaveMaxDelayInMills=20\n"
        topics = f"[topic={topic}]\n[topic={OTHERS}]\n"
        for name, role, port in (("slave", of_slave, at_slave), ("master", of_master, at_master)):
            write_ini(folder / name, role + topics, brokerId=4, numPartitions=2, serverPort=port)
        self.slave = start("start", "-f", folder / "slave" / "server.ini")
        self.master = start("start", "-f", folder / "master" / "server.ini")
        wait_until(lambda: is_taken(self.addresses[0]), "the master to take messages")

    def promote(self) -> None:
        """Lose the master, as soon as the slave has its messages, and make the slave the master."""
        wait_until(lambda: self._messages("slave") == self._messages("master"), "the copy to be complete")
        self.master.kill()
        run_broker_command("ctl", "--data", self._folder / "slave" / "data", "promote").check_returncode()
        wait_until(lambda: is_taken(self.addresses[1]), "the promoted slave to take messages")

    def _messages(self, name: str) -> dict[str, bytes]:
        data = self._folder / name / "data"
        return {str(file.relative_to(data)): file.read_bytes() for file in data.rglob("*.meta")}


def is_taken(address: Address) -> bool:
    """Whether a broker takes a message."""
    session = Session.connect(address, TIMEOUTS)
    try:
        put(session, OTHERS, 0, Message(b"x"))
    except BrokerError:
        return False
    finally:
        session.close()
    return True
