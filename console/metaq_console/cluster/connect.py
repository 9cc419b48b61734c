"""Opens the cluster of a profile."""

from __future__ import annotations

from metaq.client.metaq import MetaQ
from metaq.client.profile import ROCKETMQ_SCHEME, Profile
from metaq.client.rocketmq.client import RocketMQ
from metaq_console.cluster.metaq import MetaqSystem
from metaq_console.cluster.rocketmq import RocketmqSystem
from metaq_console.cluster.system import QueueSystem


def open_cluster(profile: Profile) -> QueueSystem:
    """Return the cluster of ``profile``; nothing is connected yet.

    Raises:
        ValueError: The cluster has no known form, or only one of an account's two keys is set.
    """
    if profile.cluster.startswith(ROCKETMQ_SCHEME):
        return RocketmqSystem(RocketMQ(**profile.rocketmq()), profile.cluster)
    return MetaqSystem(MetaQ(**profile.metaq()), profile.cluster)
