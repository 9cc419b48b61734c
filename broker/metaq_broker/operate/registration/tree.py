"""Creates and compares a broker's nodes in ZooKeeper. Every call blocks; all are made in one worker thread."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from metaq.discovery.zk_client import Node, ZooKeeperClient
from metaq_broker.operate.registration.wanted import BrokerNodes


class BrokerTree:
    """Remembers the nodes that this session has created, so that only differences are written.

    All methods raise ``ZooKeeperAway`` or ``ZooKeeperRefused``; calling them again continues where they stopped.
    """

    def __init__(self, client: ZooKeeperClient, *, takes_over: bool = False) -> None:
        """``takes_over``: until ``match`` has succeeded once, nodes of other sessions are replaced."""
        self._client, self._takes_over = client, takes_over
        self._made: dict[str, str] = {}
        self._own: str | None = None
        self._watched: set[str] = set()

    def claim(self, nodes: BrokerNodes) -> Node | None:
        """Take the broker id; return ``None``, or the node of the broker that has it.

        Correct nodes are not written again, because that would notify watchers, this broker included.
        """
        own, *lasting = self._client.read([nodes.own, *nodes.lasting])
        if own is None:
            self._client.ensure([nodes.parent, *nodes.lasting])
            while self._client.create_ephemeral({nodes.own: nodes.address}):
                [own] = self._client.read([nodes.own])
                if own is not None:
                    break
        if own is not None:
            if own.owner != self._client.session_id:
                if not self._takes_over:
                    return own
                self._client.replace_ephemeral({nodes.own: nodes.address})
            elif own.text != nodes.address:
                self._client.write({nodes.own: nodes.address})
        self._make_lasting(nodes, lasting)
        if self._own is not None and self._own != nodes.own:  # a slave that was promoted
            self._client.delete(self._of_this_session([self._own]))
        self._own = nodes.own
        return None

    def announce(self, nodes: BrokerNodes) -> None:
        """Update the persistent nodes, even if another session has the broker id."""
        self._make_lasting(nodes, self._client.read(nodes.lasting))

    def _make_lasting(self, nodes: BrokerNodes, found: Sequence[Node | None]) -> None:
        there = zip(nodes.lasting.items(), found, strict=True)
        wrong = {path: text for (path, text), node in there if node is None or node.text != text}
        self._client.ensure(wrong)
        self._client.write(wrong)

    def match(self, nodes: BrokerNodes, *, afresh: bool) -> Node | None:
        """Take the broker id and create exactly ``nodes``; return ``None``, or a node that another session has.

        ``afresh``: the session may be a new one, so check everything.
        """
        if afresh:
            self._made.clear()
            self._watched.clear()
        gone = [path for path in reversed(self._made) if path not in nodes.topics and path not in nodes.checksum]
        self._client.delete(gone)
        for path in gone:
            del self._made[path]
        holder = (
            self.claim(nodes)
            or self._have(nodes.checksum, self._client.write)
            # Java clients watch a topic for new children, not for new texts
            or self._have(nodes.topics, self._client.replace_ephemeral)
        )
        self._takes_over = self._takes_over and holder is not None
        return holder

    def check(self, nodes: BrokerNodes, *, all_of_them: bool) -> list[str]:
        """Compare the existing nodes with ``nodes``; return the paths that differ, which the next ``match`` creates
        again.

        Only nodes that have changed since the last call, or were not read yet, are read and then watched; with
        ``all_of_them``, all, in case a notification was missed.
        """
        texts = nodes.texts()
        paths = [path for path in texts if all_of_them or path not in self._watched]
        self._watched.update(paths)  # before they are read, so that no later change is missed
        wrong = []
        for path, node in zip(paths, self._client.read(paths, watch=True), strict=True):
            if node is None:
                self._watched.discard(path)
            if not self._is_right(node, texts[path], lasting=path in nodes.lasting):
                wrong.append(path)
                self._made.pop(path, None)
        return wrong

    def differing(self, nodes: BrokerNodes) -> list[str]:
        """Return the paths of ``nodes`` where ZooKeeper has another node or none. Nothing is changed."""
        texts = nodes.texts()
        found = zip(texts.items(), self._client.read(texts), strict=True)
        return [path for (path, text), node in found if not self._is_right(node, text, lasting=path in nodes.lasting)]

    def note_change(self, path: str) -> None:
        """Record that a watched node has changed. Any thread."""
        self._watched.discard(path)

    def _is_right(self, node: Node | None, text: str, *, lasting: bool) -> bool:
        return node is not None and node.text == text and (lasting or node.owner == self._client.session_id)

    def unregister(self, nodes: BrokerNodes) -> None:
        """Delete the nodes: topics first, so that no client finds a topic without its broker.

        Nodes of another session are not deleted.
        """
        made = [path for path in reversed(self._made) if path not in nodes.checksum]
        self._made.clear()
        self._watched.clear()
        self._own = None
        self._client.delete(self._of_this_session([*made, *nodes.checksum, nodes.own]))
        own, parent = self._client.read([nodes.own, nodes.parent])
        if own is not None or parent is None or not (nodes.lasting or parent.text == ""):
            return  # another broker's, or the master's own after its return
        if self._client.delete([nodes.parent]):  # slaves keep it
            self._client.write({nodes.parent: ""})

    def _of_this_session(self, paths: Collection[str]) -> list[str]:
        session_id = self._client.session_id
        found = zip(paths, self._client.read(paths), strict=True)
        return [path for path, node in found if node is not None and node.owner == session_id]

    def _have(self, texts: Mapping[str, str], change: Callable[[Mapping[str, str]], object]) -> Node | None:
        """Create ephemeral nodes, ``change`` the texts of existing ones; return one that another session has."""
        missing = {path: text for path, text in texts.items() if path not in self._made}
        self._client.ensure({path.rpartition("/")[0] for path in missing})
        there = self._client.create_ephemeral(missing)
        foreign = None
        for path, node in zip(there, self._client.read(there), strict=True):
            del missing[path]
            if node is not None and node.owner == self._client.session_id:
                self._made[path] = node.text
            elif node is not None and self._takes_over:
                self._client.replace_ephemeral({path: texts[path]})
                self._made[path] = texts[path]
            elif node is not None:
                foreign = node
        self._made.update(missing)
        changed = {path: text for path, text in texts.items() if self._made.get(path, text) != text}
        change(changed)
        self._made.update(changed)
        return foreign
