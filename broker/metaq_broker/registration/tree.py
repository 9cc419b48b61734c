"""Makes a broker's part of ZooKeeper's tree what it should be. Every call blocks; all are made in one worker thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from metaq.directory.zk_client import Node, ZooKeeperClient
from metaq_broker.registration.wanted import BrokerNodes


class BrokerTree:
    """Remembers what this session has made, so that only differences cost something.

    All methods raise ``ZooKeeperAway`` or ``ZooKeeperRefused``; calling them again continues where they stopped.
    """

    def __init__(self, client: ZooKeeperClient) -> None:
        self._client = client
        self._made: dict[str, str] = {}
        self._own: str | None = None

    def claim(self, nodes: BrokerNodes) -> Node | None:
        """Take the broker id; return ``None``, or the node of the one who has it."""
        self._client.ensure([nodes.parent, *nodes.lasting])
        while self._client.create_ephemeral({nodes.own: nodes.address}):
            [node] = self._client.read([nodes.own])
            if node is not None and node.owner != self._client.session_id:
                return node
            if node is not None:  # made by an earlier call, whose answer was lost
                self._client.write({nodes.own: nodes.address})
                break
        self._client.write(nodes.lasting)
        if self._own is not None and self._own != nodes.own:  # a slave that was made the master
            [before] = self._client.read([self._own])
            if before is not None and before.owner == self._client.session_id:
                self._client.delete([self._own])
        self._own = nodes.own
        return None

    def match(self, nodes: BrokerNodes, *, afresh: bool) -> Node | None:
        """Claim the broker id and have exactly ``nodes``; return ``None``, or a node that somebody else has.

        ``afresh``: trust nothing that was made before, the session may be another one.
        """
        if afresh:
            self._made.clear()
        gone = [path for path in reversed(self._made) if path not in nodes.topics and path not in nodes.checksum]
        self._client.delete(gone)
        for path in gone:
            del self._made[path]
        return (
            self.claim(nodes)
            or self._have(nodes.checksum, self._client.write)
            # Java clients watch a topic for new children, not for new texts
            or self._have(nodes.topics, self._client.replace_ephemeral)
        )

    def lost(self, nodes: BrokerNodes) -> list[str]:
        """Return the nodes that somebody deleted or changed since they were made; ``match`` makes them again."""
        texts = {nodes.own: nodes.address, **nodes.lasting, **self._made}
        lasting = set(nodes.lasting)
        lost = []
        for path, node in zip(texts, self._client.read(texts), strict=True):
            is_ours = node is not None and (path in lasting or node.owner == self._client.session_id)
            if node is None or not is_ours or node.text != texts[path]:
                lost.append(path)
                self._made.pop(path, None)
        return lost

    def withdraw(self, nodes: BrokerNodes) -> None:
        """Delete what was made: topics first, so that nobody finds a topic without its broker."""
        self._client.delete([path for path in reversed(self._made) if path not in nodes.checksum])
        self._client.delete([*nodes.checksum, nodes.own])
        self._made.clear()
        self._own = None
        [parent] = self._client.read([nodes.parent])
        if parent is None or not (nodes.lasting or parent.text == ""):
            return  # the master's, for its return
        if self._client.delete([nodes.parent]):  # slaves keep it
            self._client.write({nodes.parent: ""})

    def _have(self, texts: Mapping[str, str], change: Callable[[Mapping[str, str]], object]) -> Node | None:
        """Make ephemeral nodes, ``change`` the texts of those that are there; return one that somebody else has."""
        missing = {path: text for path, text in texts.items() if path not in self._made}
        self._client.ensure({path.rpartition("/")[0] for path in missing})
        there = self._client.create_ephemeral(missing)
        foreign = None
        for path, node in zip(there, self._client.read(there), strict=True):
            del missing[path]
            if node is not None and node.owner == self._client.session_id:
                self._made[path] = node.text
            elif node is not None:
                foreign = node
        self._made.update(missing)
        changed = {path: text for path, text in texts.items() if self._made.get(path, text) != text}
        change(changed)
        self._made.update(changed)
        return foreign
