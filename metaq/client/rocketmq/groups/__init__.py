"""Consumer groups of RocketMQ's: what differs from ``metaq.client.groups``, which has the rest."""
