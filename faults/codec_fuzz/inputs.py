"""Input as a peer may send it: valid frames and records, damaged ones, and ones that cost much memory or time.

An input depends only on the seed and its number.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

from metaq.formats.rocketmq.batches import BatchElement, encode_batch
from metaq.formats.rocketmq.records import Record, encode_record
from metaq.formats.rocketmq.sys_flags import INNER_BATCH
from metaq.protocols.remoting.command import Codec, RemotingCommand
from metaq.protocols.remoting.frames import encode
from metaq.protocols.remoting.headers import REQUESTS
from metaq.protocols.remoting.headers.fields import fields_of

GOLDEN: Final = Path(__file__).parents[2] / "tests" / "golden" / "rocketmq"

FRAME, RECORDS, BATCH, JSON, REGISTRATION = "frame", "records", "batch", "json", "registration"

_TEXTS: Final = ("", "T", "%RETRY%g", "标签", "\x01\x02", "a" * 300, "\ud800", "{1:2}", '"\\')
_NUMBERS: Final = ("0", "-1", "7", "2147483648", "9" * 20, "1e5", "+1", "x", "", "9" * 5000)
_I32: Final = (-(1 << 31), -1, 0, 1, 3, 255, 65_535, 65_536, (1 << 24) - 1, 1 << 24, (1 << 31) - 1)


class Input(NamedTuple):
    """Bytes, and a description of them."""

    kind: str
    data: bytes


def recorded(folder: Path = GOLDEN) -> list[Input]:
    """Return the frames, records, batches and JSON bodies of the recordings."""
    found: list[Input] = []
    for row in _rows(folder / "headers.jsonl"):
        found.append(Input(FRAME, bytes.fromhex(row["frame_hex"])))
    for row in _rows(folder / "records.jsonl"):
        for name, kind in (("record_hex", RECORDS), ("batch_hex", BATCH)):
            if name in row:
                found.append(Input(kind, bytes.fromhex(row[name])))
    for row in _rows(folder / "ns_routes.jsonl"):
        shown = row.get("request", {}).get("frame", {}).get("hex")
        bodies = [reply["body"].get("hex") for reply in row.get("replies", ())]
        found += [Input(FRAME, bytes.fromhex(shown))] if shown else []
        found += [Input(JSON, bytes.fromhex(body)) for body in bodies if body]
        if row.get("request", {}).get("header", {}).get("code") == 103:
            found.append(Input(REGISTRATION, bytes.fromhex(row["request"]["body"].get("hex", ""))))
    return found


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


class Inputs:
    """Makes inputs. ``big``: one in this many has a megabyte or more."""

    def __init__(self, seed: int, corpus: Sequence[Input], big: int = 2000) -> None:
        self._random, self._corpus, self._big = Random(seed), corpus, big

    def next(self) -> Input:
        """Return the next input, valid or not."""
        random = self._random
        if random.randrange(self._big) == 0:
            return random.choice(_BIG)(random)
        chance = random.random()
        if chance < 0.35:
            found = random.choice(self._corpus)
        elif chance < 0.75:
            found = Input(FRAME, self._frame())
        elif chance < 0.9:
            found = Input(RECORDS, self._records())
        else:
            found = Input(BATCH, encode_batch(self._elements()))
        if random.random() < 0.15:
            return found
        data = found.data
        for _ in range(random.randint(1, 3)):
            data = random.choice(_DAMAGES)(random, data)
        return Input(found.kind, data)

    def _frame(self) -> bytes:
        random = self._random
        code = random.choice([*REQUESTS, 0, 1, 9999])
        names = [field.name for field in fields_of(REQUESTS[code])] if code in REQUESTS else ["x"]
        names += [field.short for field in fields_of(REQUESTS[code]) if field.short] if code in REQUESTS else []
        ext = {name: random.choice(random.choice((_TEXTS, _NUMBERS))) for name in names if random.random() < 0.9}
        body = random.choice((b"", b"{}", b'{"a":{1:2}}', random.randbytes(40)))
        codec = Codec.JSON if code > 32_767 else random.choice(list(Codec))
        numbers = random.choice(_I32), random.choice((0, 1, 2, 3, 255))
        return encode(RemotingCommand(code, ext, body, *numbers, random.choice((None, "x", "\x00")), codec=codec))

    def _records(self) -> bytes:
        random = self._random
        records = []
        for _ in range(random.randint(1, 4)):
            body = random.randbytes(random.randrange(60))
            sys_flag = random.choice((0, 0x01, 0x101, 0x201, 0x301, 0x701, INNER_BATCH, 8))
            if sys_flag == INNER_BATCH:
                body = encode_batch(self._elements())
            elif sys_flag in (0x01, 0x301):
                body = zlib.compress(body)
            hosts = random.randbytes(random.choice((8, 20))), random.randbytes(random.choice((8, 20)))
            topic = random.choice(("T", "t" * 127, "t" * 128, "标"))
            record = Record(topic, random.choice(_I32), random.choice(_I32), body, b"TAGS\x01a\x02", sys_flag=sys_flag)
            records.append(encode_record(record._replace(born_host=hosts[0], store_host=hosts[1])))
        return b"".join(records)

    def _elements(self) -> list[BatchElement]:
        random = self._random
        return [
            BatchElement(random.randbytes(random.randrange(30)), b"KEYS\x01k", random.choice(_I32))
            for _ in range(random.randint(1, 4))
        ]


def _flip(random: Random, data: bytes) -> bytes:
    if not data:
        return b"\x00"
    at = random.randrange(len(data))
    return data[:at] + bytes((data[at] ^ 1 << random.randrange(8),)) + data[at + 1 :]


def _number(random: Random, data: bytes) -> bytes:
    """Overwrite four bytes, perhaps a length or a count, with an edge value."""
    at = random.randrange(min(len(data), 128) + 1) & random.choice((-1, -2, -4))
    return data[:at] + struct.pack(">i", random.choice(_I32)) + data[at + 4 :]


def _cut(random: Random, data: bytes) -> bytes:
    return data[: random.randrange(len(data) + 1)]


def _join(random: Random, data: bytes) -> bytes:
    return data * random.randint(2, 3)


def _drop(random: Random, data: bytes) -> bytes:
    at = random.randrange(len(data) + 1)
    return data[:at] + data[at + random.randint(1, 8) :]


def _insert(random: Random, data: bytes) -> bytes:
    at = random.randrange(len(data) + 1)
    return (
        data[:at] + random.choice((b"{", b"[" * 50, b'"', b"\\", b"1:", b"\xff\xfe", random.randbytes(9))) + data[at:]
    )


def _noise(random: Random, data: bytes) -> bytes:
    return random.randbytes(random.randrange(200))


Damage = Callable[[Random, bytes], bytes]
_DAMAGES: Final[Sequence[Damage]] = (_flip, _flip, _number, _number, _cut, _join, _drop, _insert, _noise)


def _json_frame(header: bytes) -> bytes:
    return struct.pack(">ii", 4 + len(header), len(header)) + header


def _of_size(random: Random, unit: bytes) -> bytes:
    return unit * (random.choice((100_000, 1_000_000, 4_000_000)) // len(unit))


def _big_header(random: Random) -> Input:
    unit = random.choice((b"[", b"{", b'{"a":', b"[],", b'"",', b'"ab",', b"1000,", b'"\\u0001",', b"1e9,", b"{1:"))
    lead = random.choice((b"", b"[", b'{"extFields":', b'{"code":1,"extFields":{"a":['))
    return Input(FRAME, _json_frame(lead + _of_size(random, unit)))


def _big_binary_header(random: Random) -> Input:
    fields = _of_size(random, struct.pack(">H1si1s", 1, b"a", 1, b"b"))
    header = struct.pack(">hbhiii", 10, 0, 407, 1, 0, 0) + struct.pack(">i", len(fields)) + fields
    return Input(FRAME, struct.pack(">iI", 4 + len(header), 1 << 24 | len(header)) + header)


def _oversized(random: Random) -> Input:
    lengths = ((16 << 20) - 3, (16 << 20) - 4, (1 << 31) - 1, 1 << 30)
    return Input(FRAME, struct.pack(">iI", random.choice(lengths), random.choice((10, (1 << 24) - 1))) + bytes(1000))


def _big_json(random: Random) -> Input:
    unit = random.choice((b"[", b"[],", b'{"a":', b"{1:", b'{{"a":1}:', b'"a",', b'"\\', b"1:", b"{", b'{"a'))
    return Input(JSON, random.choice((b"", b"[", b'{"offsetTable":{')) + _of_size(random, unit))


def _bomb(random: Random) -> Input:
    """Return a small input that decompresses to a large one."""
    body = zlib.compress(bytes(random.choice((1 << 20, 70 << 20))), 1)
    if random.random() < 0.5:
        return Input(REGISTRATION, body)
    return Input(RECORDS, encode_record(Record("T", 0, 0, body, sys_flag=0x301)))


_BIG: Final[Sequence[Callable[[Random], Input]]] = (_big_header, _big_binary_header, _oversized, _big_json, _bomb)
