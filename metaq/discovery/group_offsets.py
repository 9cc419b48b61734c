"""The committed offsets of MetaQ's consumer groups in ZooKeeper, in the form that Java consumers read and write.

A group has an offset for each partition, at which it continues after a restart. Java consumers read offsets only when
they start and when they rebalance: commit only for a group that is not running.

Source: docs/operations.md, "ZooKeeper".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from metaq.discovery.zk_layout import GroupOffset, ZooKeeperAddress, ZooKeeperLayout
from metaq.errors import ZooKeeperRefused
from metaq.model import TopicPartition

if TYPE_CHECKING:
    from metaq.discovery.zk_client import ZooKeeperClient


class GroupOffsetStore:
    """The offsets in the tree at ``address``. Every call opens a session, with ``timeout_s`` for each step.

    All methods raise ``ZooKeeperAway``, or ``ZooKeeperRefused``.
    """

    def __init__(self, address: ZooKeeperAddress, timeout_s: float) -> None:
        self._address, self._timeout_s = address, timeout_s
        self._layout = ZooKeeperLayout(address.root)

    def read(self, group: str, partitions: Collection[TopicPartition]) -> dict[TopicPartition, GroupOffset]:
        """Return the committed offsets of ``group`` in ``partitions``; partitions without one are left out.

        Raises:
            ValueError: The group or a topic is not a valid node name.
        """
        paths = self._paths(group, partitions)
        with self._connected() as client:
            nodes = client.read(paths.values())
        found = {}
        for (where, path), node in zip(paths.items(), nodes, strict=True):
            if node is not None and node.text:
                try:
                    found[where] = GroupOffset.parse(node.text)
                except ValueError as error:
                    raise ZooKeeperRefused(self._address.hosts, path, str(error)) from None
        return found

    def write(self, group: str, offsets: Mapping[TopicPartition, GroupOffset]) -> None:
        """Commit ``offsets`` for ``group``; offsets of other partitions are kept.

        Raises:
            ValueError: The group or a topic is not a valid node name.
        """
        paths = self._paths(group, offsets)
        texts = {path: str(offsets[where]) for where, path in paths.items()}
        with self._connected() as client:
            missing = client.write(texts)
            client.ensure(missing)
            client.write({path: texts[path] for path in missing})

    def groups(self) -> list[str]:
        """Return the names of all groups, sorted."""
        with self._connected() as client:
            return client.children([self._layout.consumers])[0] or []

    def topics(self, group: str) -> list[str]:
        """Return the topics for which ``group`` has committed offsets, sorted.

        Raises:
            ValueError: The group is not a valid node name.
        """
        with self._connected() as client:
            return client.children([self._layout.offsets(check_name(group, "group"))])[0] or []

    def consumers(self, group: str) -> list[str]:
        """Return the ids of the running consumers of ``group``."""
        with self._connected() as client:
            return client.children([self._layout.consumer_ids(check_name(group, "group"))])[0] or []

    def _connected(self) -> AbstractContextManager[ZooKeeperClient]:
        from metaq.discovery.zk_client import connected  # imports kazoo, which only users of ZooKeeper need

        return connected(self._address.hosts, self._timeout_s)

    def _paths(self, group: str, partitions: Collection[TopicPartition]) -> dict[TopicPartition, str]:
        check_name(group, "group")
        for topic in {where.topic for where in partitions}:
            check_name(topic, "topic")
        return {where: self._layout.offset(group, where) for where in partitions}


def check_name(text: str, what: str) -> str:
    """Return ``text`` if it is a valid name of a node for ``what``.

    Raises:
        ValueError: It is not a valid node name.
    """
    if not text or "/" in text or text in (".", ".."):
        raise ValueError(f"{what} {text!r}: a name in ZooKeeper is not empty, has no slash, and is not . or ..")
    return text
