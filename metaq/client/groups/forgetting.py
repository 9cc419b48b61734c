"""Removes a consumer group that bundled brokers keep."""

from __future__ import annotations

from metaq.client.groups.metaq_group import MetaqCluster
from metaq.discovery.broker_groups import BrokerGroupStore


def forget_group(cluster: MetaqCluster, group: str) -> None:
    """Remove a group that is not running, with its offsets, from all brokers of ``cluster``. Raises as
    ``check_forgettable``.
    """
    check_forgettable(cluster, group)
    BrokerGroupStore(cluster.directory, cluster.pool).forget(group)


def check_forgettable(cluster: MetaqCluster, group: str) -> None:
    """Check that a group can be forgotten.

    Raises:
        ValueError: The group has running consumers, no broker knows it, a broker of the list keeps no groups, or the
            groups are in ZooKeeper.
        MetaqError: A broker does not answer.
    """
    if cluster.zookeeper is not None:
        raise ValueError("groups in ZooKeeper are not forgotten; only those that bundled brokers keep")
    store = BrokerGroupStore(cluster.directory, cluster.pool)
    if running := store.consumers(group):
        raise ValueError(f"group {group!r} has running consumers, which still need it: {', '.join(running)}")
    if group not in store.groups():
        raise ValueError(f"no broker knows group {group!r}")
