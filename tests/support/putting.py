"""Puts at an engine, without a frontend."""

from __future__ import annotations

from collections.abc import Sequence

from metaq_broker.engine.blocks import Block
from metaq_broker.engine.engine import Engine, OnDurable
from metaq_broker.engine.outcomes import Appended, Refusal

from metaq.formats.frames import encode_frame


def nobody_waits(_refusal: Refusal | None) -> None:
    """Nobody is notified of what becomes durable."""


def put(
    engine: Engine,
    topic: str,
    partition: int,
    bodies: Sequence[bytes] = (b"x",),
    on_durable: OnDurable = nobody_waits,
    *,
    independent: bool = True,
) -> Appended | Refusal:
    """Append messages; those of one batch, unless they are ``independent``."""
    frames = bytearray().join(encode_frame(0, 0, body) for body in bodies)
    return engine.append(Block(topic, partition, frames, len(bodies), independent), on_durable)
