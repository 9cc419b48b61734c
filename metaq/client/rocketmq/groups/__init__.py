"""RocketMQ's consumer groups: the differences to ``metaq.client.groups``."""
