"""The cluster that the command uses: from the arguments, else the environment, else the profile."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from metaq.client import profile
from metaq.client.profile import DEFAULT_CLUSTER, ROCKETMQ_SCHEME, ProfileError, parse_timeout

if TYPE_CHECKING:
    from metaq.client.metaq import MetaQ
    from metaq.client.rocketmq.client import RocketMQ

__all__ = ["DEFAULT_CLUSTER", "CommandProfile", "ProfileError", "named_cluster", "parse_timeout", "read_profile"]


class CommandProfile(profile.Profile):
    """A profile that the command connects to."""

    __slots__ = ()

    def connect(self) -> MetaQ | RocketMQ:
        """Return the cluster; nothing is opened yet.

        Raises:
            ValueError: ``cluster`` has no known form, or only one of the account's two keys is set.
        """
        from metaq.client.metaq import MetaQ
        from metaq.client.rocketmq.client import RocketMQ

        return RocketMQ(**self.rocketmq()) if self.cluster.startswith(ROCKETMQ_SCHEME) else MetaQ(**self.metaq())


def read_profile(name: str | None, cluster: str | None, timeout: float | None = None) -> CommandProfile:
    return CommandProfile(**asdict(profile.read_profile(name, cluster, timeout)))


def named_cluster(text: str) -> CommandProfile:
    return CommandProfile(**asdict(profile.named_cluster(text)))
