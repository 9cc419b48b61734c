"""What a broker's part of ZooKeeper's tree should look like. Pure: configuration and stored topics in, nodes out.

Source: docs/operations.md, "ZooKeeper".
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from metaq.discovery.zk_layout import (
    Layout,
    Registrant,
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

    ``own`` is the broker's claim to its id, and with ``checksum`` and ``topics`` ephemeral; ``topics`` are in the order
    in which they are made. A master also has ``lasting`` nodes: they say where it was, ``parent`` until a clean stop,
    another one for good, and which topics it may have.
    """

    registrant: Registrant
    parent: str
    own: str
    address: str
    lasting: Mapping[str, str]
    checksum: Mapping[str, str]
    topics: Mapping[str, str]

    def texts(self) -> dict[str, str]:
        """The text of every node but ``parent``, which is among them for a master only."""
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

    ``stored``: topic -> number of its partitions on the disk, counted to the last one. Of configured topics, patterns
    included, the configuration has the number. So it does of topics that only a pattern admits; those have no node
    before they are stored. A stored topic that is not accepted any more is there to be read. ``others``: more topics of
    which there may be messages, though nothing of them is served now. Hidden topics have no nodes.
    """
    layout, broker_id = Layout(root), config.system.broker_id
    registrant, text, parent = Registrant(broker_id, slave), address_text(address), layout.broker(broker_id)
    topics = dict(_topic_nodes(layout, registrant, config, stored))
    if slave is not None:
        return BrokerNodes(registrant, parent, layout.slave(broker_id, slave), text, {}, {}, topics)
    names = member_topics_text({each for each in {*config.topics, *stored, *others} if not config.hides(each)})
    lasting = {parent: text, layout.member(broker_id): text, layout.member_topics(broker_id): names}
    checksum = {layout.config_checksum(broker_id): str(config.checksum)}
    return BrokerNodes(registrant, parent, layout.master(broker_id), text, lasting, checksum, topics)


def _topic_nodes(
    layout: Layout, registrant: Registrant, config: BrokerConfig, stored: Mapping[str, int]
) -> Iterator[tuple[str, str]]:
    for topic in sorted(each for each in {*config.topics, *stored} if not config.hides(each)):
        accepted, settings = config.accepts(topic), config.topic_settings(topic)
        count = settings.num_partitions if accepted else stored[topic]
        if settings.accept_subscribe:
            yield f"{layout.topics_sub}/{topic}/{registrant}", topic_text(count, registrant)
        if accepted and settings.accept_publish:
            yield f"{layout.topics_pub}/{topic}/{registrant}", topic_text(count, registrant)
        # Last: who finds a topic here, but not for readers, takes it as hidden from them.
        yield f"{layout.topics}/{topic}/{registrant}", partition_count_text(count)
