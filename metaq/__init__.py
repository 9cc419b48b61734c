"""Clients, protocols, formats and directories of MetaQ (Metamorphosis) and RocketMQ."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from metaq.client.async_metaq import AsyncMetaQ
    from metaq.client.metaq import MetaQ
    from metaq.client.rocketmq.async_client import AsyncRocketMQ
    from metaq.client.rocketmq.client import RocketMQ

__all__ = ["AsyncMetaQ", "AsyncRocketMQ", "MetaQ", "RocketMQ", "__version__"]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Import a client on first use: brokers and executors import this package without needing one."""
    if name == "MetaQ":
        from metaq.client.metaq import MetaQ

        return MetaQ
    if name == "AsyncMetaQ":
        from metaq.client.async_metaq import AsyncMetaQ

        return AsyncMetaQ
    if name == "RocketMQ":
        from metaq.client.rocketmq.client import RocketMQ

        return RocketMQ
    if name == "AsyncRocketMQ":
        from metaq.client.rocketmq.async_client import AsyncRocketMQ

        return AsyncRocketMQ
    raise AttributeError(f"module 'metaq' has no attribute {name!r}")
