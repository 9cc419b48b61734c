"""The codec alone: for any bytes, it returns commands or raises its one documented error, within its memory limit."""

from __future__ import annotations

from random import Random
from typing import Final

from faults.fuzz.attacker import FuzzFinding
from faults.fuzz.mutations import random_cuts
from faults.remoting_fuzz.frames import Frames
from metaq.errors import FieldError, ProtocolError
from metaq.protocols.remoting.bodies.registration import read_registration
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.frames import FrameDecoder, encode
from metaq.protocols.remoting.headers import parse_request

FRAME_BYTES_MAX: Final = 100_000
CONVERSATION: Final = 8


def fuzz_codec(seed: str, frames: int) -> tuple[int, int]:
    """Decode ``frames`` frames, altered or not; return the number of commands and of streams that ended with an error.

    Raises:
        FuzzFinding: Another error, too much memory, or a command that changed when it was encoded and decoded again.
    """
    random = Random(seed)
    made, commands, errors = Frames(random), 0, 0
    for _ in range(-(-frames // CONVERSATION)):
        edge_chance = random.choice((0.0, 0.02, 0.3))
        phrases = [made.daring(edge_chance).data for _ in range(CONVERSATION)]
        data = b"".join(made.altered(each) if random.random() < edge_chance else each for each in phrases)
        decoder = FrameDecoder(FRAME_BYTES_MAX)
        try:
            for part in random_cuts(random, data):
                for command in decoder.receive(part):
                    commands += 1
                    _look_into(command, data)
                if decoder.pending_bytes > FRAME_BYTES_MAX + len(part):
                    raise FuzzFinding(f"seed {seed}: the decoder keeps {decoder.pending_bytes} bytes of {data[:200]!r}")
        except ProtocolError:
            errors += 1
    return commands, errors


def _look_into(command: RemotingCommand, data: bytes) -> None:
    try:
        # A language without a number, and a lone surrogate, are replaced when they are encoded: once, and not again.
        once = _there_and_back(command)
        same = (once.code, once.opaque, once.flag, once.body) == (
            command.code,
            command.opaque,
            command.flag,
            command.body,
        )
        if not same or once.ext.keys() != command.ext.keys() or _there_and_back(once) != once:
            raise FuzzFinding(f"{command} came back as {once}, out of {data[:200]!r}")
    except FieldError:
        pass  # not possible in the binary header
    for look in (parse_request, lambda each: read_registration(each.body, bool(each.flag & 1), each.version)):
        try:
            look(command)
        except FieldError:
            continue
        except Exception as error:
            raise FuzzFinding(f"{type(error).__name__}: {error} in {command}") from error


def _there_and_back(command: RemotingCommand) -> RemotingCommand:
    (again,) = FrameDecoder().receive(encode(command))
    return again
