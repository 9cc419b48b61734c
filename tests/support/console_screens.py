"""Every screen of a dashboard over HTTP, without a browser: for clusters of other makers."""

from __future__ import annotations

import json
import urllib.request
from typing import Any
from urllib.parse import quote

DEADLINE_S = 120.0


def paths(topic: str, group: str, partition: str, offset: int) -> list[str]:
    """The addresses of all screens, for a topic with a message at ``offset`` of ``partition``, and a group."""
    of_topic, of_group = f"topic={quote(topic)}", f"group={quote(group)}"
    return [
        *("/", "/queries", "/topics", "/groups", "/transactions", "/replication", "/clients"),
        *(f"/topic?{of_topic}", f"/topic/messages?{of_topic}", f"/topic/live?{of_topic}"),
        *(f"/topic/messages?{of_topic}&text=order", f"/topic/messages?{of_topic}&start=earliest"),
        f"/message?{of_topic}&partition={quote(partition)}&offset={offset}",
        *(f"/group?{of_group}", f"/group/reset?{of_group}&{of_topic}&to=earliest", f"/dead-letters?{of_group}"),
    ]


def opened(url: str, path: str) -> str:
    """Open a page or an answer; any status but success is an error."""
    with urllib.request.urlopen(url + path, timeout=DEADLINE_S) as answer:
        text: str = answer.read().decode()
    return text


def asked(url: str, path: str) -> Any:
    """Ask the API."""
    return json.loads(opened(url, path))
