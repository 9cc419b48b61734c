"""What a read does with payloads that are not JSON of its type: the modes of Spark's own JSON reader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark.sql.types import DataType, StringType, StructType

PERMISSIVE: Final = "permissive"
DROP: Final = "dropmalformed"
FAIL: Final = "failfast"
MODES: Final = (PERMISSIVE, DROP, FAIL)

CORRUPT_RECORD: Final = "_corrupt_record"
"""Spark's name of the field for the text of a malformed payload."""


@dataclass(frozen=True, slots=True)
class JsonRules:
    """What a read does with a malformed payload: one that is not JSON, or of which a part does not fit its type.

    ``mode``: ``permissive`` = what does not fit is null, ``dropmalformed`` = no row, ``failfast`` = the task fails.
    ``corrupt_field``: the field of the type that gets the text of a malformed payload, if the type has such a field.
    """

    mode: str = PERMISSIVE
    corrupt_field: str = CORRUPT_RECORD

    def field_of(self, kind: DataType | None) -> str | None:
        """Return the corrupt field, if ``kind`` has it.

        Raises:
            ValueError: It is not a string.
        """
        if not isinstance(kind, StructType) or self.corrupt_field not in kind.names:
            return None
        if not isinstance(kind[self.corrupt_field].dataType, StringType):
            raise ValueError(f"its field {self.corrupt_field} gets the text of what does not fit; make it STRING")
        return self.corrupt_field


DEFAULT_RULES: Final = JsonRules()
