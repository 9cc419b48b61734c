"""The address of an asynchronous slave's master: the configured one, or the one registered in ZooKeeper."""

from __future__ import annotations

import asyncio

from metaq.errors import MetaqError
from metaq.model import Address
from metaq_broker.operate.config.sections import ZooKeeperConfig

ANSWER_S_MAX = 10.0
"""Longest wait for ZooKeeper."""


class MasterNotFound(MetaqError):
    """ZooKeeper has no master, or cannot be asked; the text says which."""


class MasterAddress:
    """Finds the master of broker id ``broker_id``: at ``configured``, or in ZooKeeper at each call."""

    def __init__(self, configured: Address | None, zookeeper: ZooKeeperConfig, broker_id: int) -> None:
        self.configured = configured
        self._zookeeper, self._broker_id = zookeeper, broker_id

    async def find(self) -> Address:
        """Return the address of the master.

        Raises:
            MasterNotFound: It is not known now.
        """
        if self.configured is not None:
            return self.configured
        return await asyncio.to_thread(self._ask_zookeeper)

    def _ask_zookeeper(self) -> Address:
        from metaq.discovery.zk_client import connected  # imported here: only who uses ZooKeeper needs kazoo
        from metaq.discovery.zk_map import TreeReader

        address = self._zookeeper.address
        timeout_s = min(self._zookeeper.connection_timeout_ms / 1000, ANSWER_S_MAX)
        try:
            with connected(address.hosts, timeout_s) as client:
                known = TreeReader(client, address).brokers().get(self._broker_id)
        except MetaqError as error:
            raise MasterNotFound(f"ZooKeeper cannot be asked for the master: {error}") from error
        if known is None or known.master is None:
            raise MasterNotFound(f"no master of broker id {self._broker_id} is registered in ZooKeeper at {address}")
        return Address(known.master.host, known.master.port)
