"""Makes commands: valid ones, nearly valid ones, and ones with edge values.

A ``Phrase`` is the bytes of one command with its body. The broker must answer a ``proper`` one and stay connected;
``opaque`` is the number that its answer must have.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from random import Random
from typing import Final, NamedTuple

from metaq.formats.checksum import checksum
from metaq.formats.frames import encode_frame

TOPICS: Final = ("fuzz-0", "fuzz-1", "fuzz-2", "wild-1", "wild-2")
"""Topics that the broker accepts, the last two by a wildcard."""

EDGE_NAMES: Final = (
    *("nobody", "-", "--", "a-0", "fuzz-0-1", "*", "fuzz-*", "transactions", "lock", "größe", "\u202e"),
    *(".", "..", "../escape", "../../escape-0", "/escape", "a/b", "wild-/../escape", "wild-.."),
    *("wild-" + "x" * 300, "wild-\x00", "wild-\t"),
)
TYPES: Final = ("kind", "paid,open", "a_1,b,c,d,e,f")
EDGE_TYPES: Final = (",", "a,,b", "größe", "*", "a b", ",".join(f"type{n}" for n in range(3000)), "x" * 10_000)
EDGE_KEYS: Final = ("TX", "TX:", "TX::1", "TX:s:99999999999", "XID:1:zz:aa:u", "XID:1:a:b:u", "XID:::::", "null")
EDGE_NUMBERS: Final = (
    *("0", "1", "-1", "+5", "-0", "007", "20", "2147483647", "-2147483648", "2147483648", "-2147483649", "4294967296"),
    *("9223372036854775807", "-9223372036854775808", "9223372036854775808", "1" * 40, "0" * 5000 + "1"),
    *("", "-", "+", "1.0", "1e3", "0x10", "1_000", "\u0661", "NaN", "five"),
)
STATS_ITEMS: Final = ("", "help", "topics", "offsets", "realtime", "reset", "config", "durability", "failures")
STEPS: Final = ("BEGIN", "PREPARE", "COMMIT_ONE_PHASE", "COMMIT_TWO_PHASE", "ROLLBACK", "RECOVER", "FORGET")
MODES: Final = ("", " boundary", " timestamp", " nonsense")
OPAQUES: Final = range(1, 1 << 30)
WITHOUT_ANSWER: Final = (b"quit\r\n", b"q\r\n", b"transaction TX:s:1 s END 1\r\n", b"value 0 1\r\n")


class Phrase(NamedTuple):
    """``opaque`` is ``None`` for a command that is not proper, or that has no answer."""

    data: bytes
    opaque: int | None = None


class Grammar:
    """Makes phrases, all from one ``Random``."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._makers: Sequence[Callable[[int], bytes]] = (
            *(self._put,) * 6,
            *(self._put_batch,) * 3,
            *(self._get,) * 4,
            *(self._get_filtered,) * 2,
            *(self._offset,) * 2,
            *(self._transaction,) * 5,
            self._stats,
            self._version,
            self._sync,
            self._decide,
        )
        self._edge_chance = 0.0

    def proper(self) -> Phrase:
        """Return a command that must be answered; the answer may be a refusal."""
        self._edge_chance = 0.0
        opaque = self._random.choice(OPAQUES)
        return Phrase(self._random.choice(self._makers)(opaque), opaque)

    def daring(self, edge_chance: float) -> Phrase:
        """Return a command of which each field may be wrong with this chance, a command without an answer, or noise."""
        chance = self._random.random()
        if chance < edge_chance / 2:
            return Phrase(self._random.choice(WITHOUT_ANSWER))
        if chance < edge_chance:
            return Phrase(self._noise())
        self._edge_chance = edge_chance
        return Phrase(self._random.choice(self._makers)(self._random.choice(OPAQUES)))

    # ---- commands

    def _put(self, opaque: int) -> bytes:
        body = self._body()
        sums = ("", f"{checksum(body)} ", f"{checksum(body)} ", "-1 ", "7 ")
        key = f"{self._key()} " if self._random.random() < 0.3 else ""
        head = f"put {self._topic()} {self._partition()} {self._length(len(body))} {self._flag()} "
        return self._line(f"{head}{self._random.choice(sums)}{key}{opaque}", body)

    def _put_batch(self, opaque: int) -> bytes:
        count = self._random.choice((1, 1, 2, 3, 17))
        frames = [self._frame() for _ in range(count)]
        block = b"".join(frames)
        key = f"{self._key()} " if self._random.random() < 0.3 else ""
        described = self._edge(str(self._random.choice((count, count, count, count + 1))))
        head = f"mput {self._topic()} {self._partition()} {self._length(len(block))} {described} "
        return self._line(f"{head}{key}{opaque}", block)

    def _get(self, opaque: int) -> bytes:
        size = self._edge(str(self._random.choice((20, 100, 4096, 1 << 20))))
        return self._line(f"get {self._topic()} group {self._partition()} {self._position()} {size} {opaque}")

    def _get_filtered(self, opaque: int) -> bytes:
        types = self._random.choice(EDGE_TYPES if self._daring() else TYPES)
        size = self._edge(str(self._random.choice((20, 100, 4096, 1 << 20))))
        return self._line(f"fget {self._topic()} group {self._partition()} {self._position()} {size} {types} {opaque}")

    def _offset(self, opaque: int) -> bytes:
        mode = self._random.choice(MODES)
        return self._line(f"offset {self._topic()} group {self._partition()} {self._position()} {opaque}{mode}")

    def _transaction(self, opaque: int) -> bytes:
        step = self._edge(self._random.choice(STEPS))
        extra = self._random.choice(("", "", " 1", " 5", " unit", " 2 unit"))
        key = "null" if step == "RECOVER" else self._key()
        return self._line(f"transaction {key} session {step}{extra} {opaque}")

    def _stats(self, opaque: int) -> bytes:
        return self._line(f"stats {self._random.choice(STATS_ITEMS)} {opaque}")

    def _version(self, opaque: int) -> bytes:
        return self._line(f"version {opaque}")

    def _sync(self, opaque: int) -> bytes:
        body = self._body()
        message_id = self._edge(str(self._random.randint(1, 99)))
        return self._line(f"sync {self._topic()} {self._partition()} {len(body)} 0 {message_id} {opaque}", body)

    def _decide(self, opaque: int) -> bytes:
        keys = [self._branch() for _ in range(self._random.randint(0, 3))]
        body = "\r\n".join(keys).encode()
        batch = self._edge(str(self._random.randint(0, 50)))
        return self._line(f"decide query-{self._random.randint(0, 9)} {batch} {self._length(len(body))} {opaque}", body)

    # ---- fields

    def _line(self, line: str, body: bytes = b"") -> bytes:
        return line.encode("utf-8", "surrogatepass") + b"\r\n" + body

    def _daring(self) -> bool:
        return self._edge_chance > 0 and self._random.random() < self._edge_chance

    def _edge(self, usual: str) -> str:
        return self._random.choice(EDGE_NUMBERS) if self._daring() else usual

    def _topic(self) -> str:
        if not self._daring():
            return self._random.choice(TOPICS)
        fresh = f"new-{self._random.getrandbits(64):x}", f"wild-{self._random.randint(0, 99)}"
        return self._random.choice((*EDGE_NAMES, *fresh))

    def _partition(self) -> str:
        return self._edge(str(self._random.choice((0, 0, 1, 1, -1, 2))))

    def _position(self) -> str:
        """Return an offset at the start, within the partition, or far beyond its end."""
        return self._edge(str(self._random.choice((0, 0, 20, self._random.randint(0, 1 << 20), 1 << 50))))

    def _flag(self) -> str:
        return self._edge(self._random.choice(("0", "0", "1", "7", "-1")))

    def _length(self, length: int) -> str:
        if self._daring():
            return self._random.choice((str(length + 1), str(max(0, length - 1)), *EDGE_NUMBERS))
        return str(length)

    def _body(self) -> bytes:
        length = self._random.choice((0, 1, 4, 20, 21, 100, 100, 300, 300, 300, 2000))
        if self._random.random() < 0.002:
            length = self._random.choice((70_000, 300_000, 600_000))
        kind = self._random.random()
        if kind < 0.3:
            return bytes(length)
        if kind < 0.4:  # with flag 1 a message of that type
            return b"\x00\x00\x00\x04kind" + bytes(length)
        if kind < 0.7:
            return self._random.randbytes(length)
        return (b"put fuzz-0 0 4 0 1\r\n" * (length // 20 + 1))[:length]

    def _frame(self) -> bytes:
        body = self._random.randbytes(self._random.choice((0, 4, 50, 300)))
        crc = 1 if self._random.random() < 0.05 else None
        return encode_frame(0, self._random.choice((0, 0, 1)), body, crc)

    def _key(self) -> str:
        if self._random.random() < 0.5:
            return self._branch()
        if self._daring():
            return self._random.choice(EDGE_KEYS)
        return f"TX:s{self._random.randint(0, 2)}:{self._random.randint(0, 5)}"

    def _branch(self) -> str:
        numbers = self._random.randint(0, 1), self._random.randint(16, 40), self._random.randint(16, 18)
        return "XID:{}:{:x}:{:x}:unit".format(*numbers)

    def _noise(self) -> bytes:
        letters = string.ascii_lowercase + " \r\n:-0123456789"
        if self._random.random() < 0.5:
            return self._random.randbytes(self._random.randint(1, 300))
        return "".join(self._random.choices(letters, k=self._random.randint(1, 200))).encode()
