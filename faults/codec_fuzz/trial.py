"""Runs every decoder on each input; only the errors that a decoder documents may be raised."""

from __future__ import annotations

import resource
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final

from faults.codec_fuzz.inputs import BATCH, FRAME, JSON, RECORDS, Input, Inputs
from faults.fuzz.mutations import random_cuts
from metaq.errors import CodecMissing, CorruptRecord, FieldError, ProtocolError
from metaq.formats.rocketmq.batches import decode_batch, encode_batch
from metaq.formats.rocketmq.records import encode_record, read_record, unwrapped
from metaq.protocols.remoting.bodies.groups import HeartbeatData, LockBatchRequestBody
from metaq.protocols.remoting.bodies.offsets import ConsumerOffsets, ConsumeStats
from metaq.protocols.remoting.bodies.registration import read_registration
from metaq.protocols.remoting.bodies.routes import ClusterInfo, TopicRouteData
from metaq.protocols.remoting.codes import LANGUAGES
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.frames import FRAME_BYTES_MAX, FrameDecoder, encode
from metaq.protocols.remoting.headers import parse_request

EXPECTED: Final = (ProtocolError, FieldError, CorruptRecord, CodecMissing)

BODIES: Final = (TopicRouteData, ClusterInfo, HeartbeatData, LockBatchRequestBody, ConsumerOffsets, ConsumeStats)


class Finding(Exception):
    """An input violated a limit or raised a wrong error."""


@dataclass(slots=True)
class Tally:
    """Counts of the outcomes."""

    inputs: int = 0
    commands: int = 0
    records: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    slowest: str = ""
    peak_mib: int = 0

    def __str__(self) -> str:
        refused = ", ".join(f"{count:,} {name}" for name, count in self.refused.most_common())
        return (
            f"{self.inputs:,} inputs: {self.commands:,} commands and {self.records:,} records read; refused {refused}; "
            f"slowest {self.slowest_s * 1000:.0f} ms ({self.slowest}); peak memory {self.peak_mib} MiB"
        )


class Trial:
    """Decodes inputs, one after the other."""

    def __init__(self, inputs: Inputs, seed: int, seconds_max: float, mib_max: int) -> None:
        """``seconds_max`` limits the CPU time for each input, ``mib_max`` the memory of the process."""
        self._inputs, self._random = inputs, Random(seed)
        self._seconds_max, self._mib_max = seconds_max, mib_max
        self.tally = Tally()

    def run(self, count: int) -> Tally:
        """Decode ``count`` inputs.

        Raises:
            Finding: An input crashed a decoder, took too long or too much memory.
        """
        for _ in range(count):
            self._one(self._inputs.next())
        return self.tally

    def _one(self, given: Input) -> None:
        started = time.process_time()  # excludes other programs on a busy machine
        reader = _READERS.get(given.kind, Trial._registration)
        self._guarded(given, lambda: reader(self, given.data))
        passed, tally = time.process_time() - started, self.tally
        tally.inputs += 1
        if passed > tally.slowest_s:
            tally.slowest_s, tally.slowest = passed, f"{given.kind} of {len(given.data):,} bytes"
        tally.peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        if passed > self._seconds_max:
            raise Finding(f"{passed:.1f} s of CPU for {_shown(given)}")
        if tally.peak_mib > self._mib_max:
            raise Finding(f"{tally.peak_mib} MiB of memory after {_shown(given)}")

    def _guarded(self, given: Input, read: Callable[[], None]) -> None:
        try:
            read()
        except EXPECTED as error:
            str(error)
            self.tally.refused[type(error).__name__] += 1
        except Finding as finding:
            raise Finding(f"{finding}: {_shown(given)}") from None
        except Exception as error:
            raise Finding(f"{type(error).__name__}: {error}: {_shown(given)}") from error

    def _frames(self, data: bytes) -> None:
        decoder = FrameDecoder()
        for piece in random_cuts(self._random, data):
            for command in decoder.receive(piece):
                self.tally.commands += 1
                self._command(command)
            if decoder.pending_bytes > FRAME_BYTES_MAX:
                raise Finding(f"{decoder.pending_bytes} bytes wait")

    def _command(self, command: RemotingCommand) -> None:
        (again,) = FrameDecoder().receive(encode(command))
        if command.language not in LANGUAGES:  # the binary header has numbers for those only
            again, command = replace(again, language=""), replace(command, language="")
        if again != command and not _differs_in_surrogates(command):
            raise Finding(f"{command} came back as {again}")
        try:
            header = parse_request(command)
        except FieldError:
            self.tally.refused["FieldError"] += 1
            return
        if header is not None and header.from_ext(header.ext(command.code), command.code) != header:
            raise Finding(f"{header} came back as another")

    def _read_records(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            try:
                record = read_record(data, at)
            except CorruptRecord as error:
                self.tally.refused["CorruptRecord"] += 1
                if error.size <= 0:
                    return
                at += error.size
                continue
            at += record.size
            self.tally.records += 1
            if read_record(encode_record(record))._replace(size=0) != record._replace(size=0):
                raise Finding(f"{record} came back as another")
            for message in unwrapped(record):
                message.value(bytes_max=8 << 20)
                message.property_map()

    def _batch(self, data: bytes) -> None:
        elements = decode_batch(data)
        if decode_batch(encode_batch(elements)) != elements:
            raise Finding("a batch came back as another")

    def _json(self, data: bytes) -> None:
        body = self._random.choice(BODIES)
        parsed = body.from_json(data)
        if body.from_json(parsed.to_json(bare_number_keys=self._random.random() < 0.5)) != parsed:
            raise Finding(f"{parsed} came back as another")

    def _registration(self, data: bytes) -> None:
        read_registration(data, self._random.random() < 0.5, self._random.choice((0, 407, 479)))


_READERS: Final[dict[str, Callable[[Trial, bytes], Any]]] = {
    FRAME: Trial._frames,
    RECORDS: Trial._read_records,
    BATCH: Trial._batch,
    JSON: Trial._json,
}


def _differs_in_surrogates(command: RemotingCommand) -> bool:
    """Return whether a command has lone surrogates, which have no UTF-8 form and are sent as question marks."""
    texts = (*command.ext, *command.ext.values(), command.remark or "", command.language)
    return any("\ud800" <= unit <= "\udfff" for text in texts for unit in text) or command.remark == ""


def _shown(given: Input) -> str:
    more = "..." if len(given.data) > 2000 else ""
    return f"{given.kind} of {len(given.data)} bytes {given.data[:2000].hex()}{more}"
