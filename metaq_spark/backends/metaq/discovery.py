"""How the brokers are found that the options name: each by its address, or all of them in ZooKeeper."""

from __future__ import annotations

import functools

from metaq.backends.metaq.pool import SessionPool
from metaq.discovery.base import Directory
from metaq.discovery.fixed import FixedDirectory
from metaq.discovery.zk_cache import TreeCache
from metaq.discovery.zk_layout import ZooKeeperAddress
from metaq.discovery.zookeeper import ZooKeeperDirectory
from metaq.model import Address
from metaq_spark.backends.metaq.options import BrokerOptions


@functools.cache
def tree_cache(address: ZooKeeperAddress, timeout_s: float) -> TreeCache:
    """What this process knows of a tree. Spark makes new readers and writers all the time; what they know stays."""
    return TreeCache(address, timeout_s)


def directory_of(options: BrokerOptions, pool: SessionPool) -> Directory:
    """The brokers of a read or a write, asked over connections of ``pool``."""
    return FixedDirectory(options.brokers, pool) if options.zookeeper is None else _in_zookeeper(options, pool)


def masters_of(options: BrokerOptions, pool: SessionPool) -> tuple[Address, ...]:
    """Every broker that a write may have to do with, whether it answers now or not; named ones may also be slaves.

    Raises:
        ZooKeeperAway, ZooKeeperRefused: ZooKeeper cannot be asked, and could not before.
    """
    return options.brokers if options.zookeeper is None else tuple(_in_zookeeper(options, pool).masters().values())


def _in_zookeeper(options: BrokerOptions, pool: SessionPool) -> ZooKeeperDirectory:
    assert options.zookeeper is not None  # the caller looked
    return ZooKeeperDirectory(tree_cache(options.zookeeper, options.timeouts.connect_s), pool)
