"""Ports that servers listen at and clients connect to unless they are told otherwise."""

from __future__ import annotations

from typing import Final

METAQ: Final = 8123
METAQ_DASHBOARD: Final = 8120
NAME_SERVER: Final = 9876
ROCKETMQ: Final = 10911
ZOOKEEPER: Final = 2181

METAQ_HERE: Final = f"127.0.0.1:{METAQ}"
"""A broker on this machine: the default of commands, and the example in messages."""
