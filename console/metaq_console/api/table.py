"""All operations."""

from __future__ import annotations

from typing import Final

from metaq_console.api import cluster, groups, messages, queries, scans, topics
from metaq_console.api.operations import ApiOperation

OPERATIONS: Final[tuple[ApiOperation, ...]] = (
    *cluster.OPERATIONS,
    *topics.OPERATIONS,
    *messages.OPERATIONS,
    *scans.OPERATIONS,
    *groups.OPERATIONS,
    *queries.OPERATIONS,
)
