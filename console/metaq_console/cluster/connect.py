"""Opens the cluster of a profile, and asks single servers of it whether they answer."""

from __future__ import annotations

import dataclasses

from metaq.backends.rocketmq.errors import NameServersAway
from metaq.client.metaq import MetaQ
from metaq.client.profile import ROCKETMQ_SCHEME, Profile
from metaq.client.rocketmq.client import RocketMQ
from metaq.discovery.base import Away, nobody
from metaq.errors import ConnectionFailed, MetaqError
from metaq.model import Address
from metaq_console.cluster.metaq import MetaqSystem
from metaq_console.cluster.rocketmq import RocketmqSystem
from metaq_console.cluster.system import QueueSystem
from metaq_console.cluster.watch import PING_S


def open_cluster(profile: Profile, away: Away = nobody) -> QueueSystem:
    """Return the cluster of ``profile``, which asks no server in ``away``; nothing is connected yet.

    Raises:
        ValueError: The cluster has no known form, or only one of an account's two keys is set.
    """
    if profile.cluster.startswith(ROCKETMQ_SCHEME):
        return RocketmqSystem(RocketMQ(**profile.rocketmq(), away=away), profile.cluster, away)
    return MetaqSystem(MetaQ(**profile.metaq(), away=away), profile.cluster, away)


def ping(profile: Profile, address: Address) -> None:
    """Ask a server of the cluster something small, over a connection of its own. Any answer will do, also a refusal.

    Raises:
        MetaqError: There is no answer within ``PING_S``; the error is ``away``.
    """
    scheme = ROCKETMQ_SCHEME if profile.cluster.startswith(ROCKETMQ_SCHEME) else ""
    alone = dataclasses.replace(profile, cluster=f"{scheme}{address}", timeout=PING_S)
    try:
        if scheme:
            with RocketMQ(**alone.rocketmq()) as rocketmq:
                rocketmq.cluster.topic_names()  # a broker refuses the question, which is an answer
        else:
            with MetaQ(**alone.metaq()) as metaq:
                metaq.cluster.brokers()
    except NameServersAway as error:
        raise ConnectionFailed(address, "a first question", error.reasons[0]) from error
    except MetaqError as error:
        if error.away:
            raise
