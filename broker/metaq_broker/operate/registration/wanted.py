"""The nodes that a broker should have in ZooKeeper. Pure: configuration and stored topics in, nodes out.

Source: docs/operations.md, "ZooKeeper".
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from metaq.discovery.zk_layout import (
    Registrant,
    ZooKeeperLayout,
    address_text,
    member_topics_text,
    partition_count_text,
    topic_text,
)
from metaq.model import Address
from metaq_broker.operate.config.configuration import BrokerConfig


@dataclass(frozen=True, slots=True)
class BrokerNodes:
    """The nodes of one broker, path -> text where there is more than one.

    ``own`` is the node of the broker id; it is ephemeral, like ``checksum`` and ``topics``, which are in the order of
    their creation. A master also has ``lasting`` nodes with its address (``parent`` until a clean stop, another one
    permanently) and with the topics that it may have.
    """

    registrant: Registrant
    parent: str
    own: str
    address: str
    lasting: Mapping[str, str]
    checksum: Mapping[str, str]
    topics: Mapping[str, str]

    def texts(self) -> dict[str, str]:
        """Return the text of every node except ``parent``, which only a master has."""
        return {self.own: self.address, **self.lasting, **self.checksum, **self.topics}


def broker_nodes(
    root: str,
    config: BrokerConfig,
    address: Address,
    stored: Mapping[str, int],
    slave: int | None = None,
    others: Collection[str] = (),
) -> BrokerNodes:
    """The nodes of a broker that clients reach at ``address``, the master or slave number ``slave`` of its broker id.

    ``stored``: topic -> number of its partitions on the disk, up to the last one. For accepted topics, the
    configuration has the number; a topic that only a pattern accepts has no node before it is stored. A stored topic
    that is no longer accepted can only be read. ``others``: further topics that may have messages, although they are
    not served now. Hidden topics have no nodes.
    """
    layout, broker_id = ZooKeeperLayout(root), config.system.broker_id
    registrant, text, parent = Registrant(broker_id, slave), address_text(address), layout.broker(broker_id)
    topics = dict(_topic_nodes(layout, registrant, config, stored))
    if slave is not None:
        return BrokerNodes(registrant, parent, layout.slave(broker_id, slave), text, {}, {}, topics)
    names = member_topics_text({each for each in {*config.topics, *stored, *others} if not config.hides(each)})
    lasting = {parent: text, layout.member(broker_id): text, layout.member_topics(broker_id): names}
    checksum = {layout.config_checksum(broker_id): str(config.checksum)}
    return BrokerNodes(registrant, parent, layout.master(broker_id), text, lasting, checksum, topics)


def _topic_nodes(
    layout: ZooKeeperLayout, registrant: Registrant, config: BrokerConfig, stored: Mapping[str, int]
) -> Iterator[tuple[str, str]]:
    for topic in sorted(each for each in {*config.topics, *stored} if not config.hides(each)):
        accepted, settings = config.accepts(topic), config.topic_settings(topic)
        count = settings.num_partitions if accepted else stored[topic]
        if settings.accept_subscribe:
            yield f"{layout.topics_sub}/{topic}/{registrant}", topic_text(count, registrant)
        if accepted and settings.accept_publish:
            yield f"{layout.topics_pub}/{topic}/{registrant}", topic_text(count, registrant)
        # Last: a client that finds a topic here, but not for readers, considers it hidden.
        yield f"{layout.topics}/{topic}/{registrant}", partition_count_text(count)
