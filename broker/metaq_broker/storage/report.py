"""What opening a partition found and did."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from metaq.model import OffsetRange
from metaq_broker.storage.damage import Damage
from metaq_broker.storage.losses import LostEnd


@dataclass(slots=True)
class RecoveryReport:
    """``bytes_cut`` bytes of a torn tail were cut at offset ``cut_at``; ``damage`` was found now (not known before).

    ``suspect``: spans whose bodies are intact but whose ids or flags are not what was written. ``indexes_rebuilt``:
    starts of segments whose index was missing or wrong. ``removed``: files of segments that never had an acknowledged
    message. ``missing_bytes``: durable bytes that are gone from the end; ``lost`` says which. ``incarnation_fault``:
    why the partition's incarnation could not be read, so that it got another one.
    """

    bytes_cut: int = 0
    cut_at: int | None = None
    damage: list[Damage] = field(default_factory=list)
    suspect: list[OffsetRange] = field(default_factory=list)
    indexes_rebuilt: list[int] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    missing_bytes: int = 0
    lost: LostEnd | None = None
    incarnation_fault: str | None = None

    @property
    def index_rebuilt(self) -> bool:
        """Whether any index was made again."""
        return bool(self.indexes_rebuilt)

    @property
    def bytes_quarantined(self) -> int:
        """Bytes newly found damaged."""
        return sum(len(entry.range) for entry in self.damage)

    def warnings(self) -> Iterator[str]:
        """Yield one sentence for each thing an operator should know."""
        if self.bytes_cut:
            yield f"torn tail of {self.bytes_cut} bytes cut at offset {self.cut_at}"
        if self.missing_bytes:
            yield f"{self.missing_bytes} bytes that were durable are gone from the end of the partition"
        yield from (f"damaged bytes quarantined: {entry}" for entry in self.damage)
        for span in self.suspect:
            yield f"message ids or flags changed in [{span.start}, {span.end}); bodies are intact"
        if self.incarnation_fault is not None:
            consequence = "it got a new one, and readers that know the old one take it for another partition"
            yield f"the partition's incarnation cannot be read ({self.incarnation_fault}); {consequence}"
        yield from (f"removed unfinished segment {name}" for name in self.removed)
