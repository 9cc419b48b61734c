"""All rules, in the order in which their findings are shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from metaq_spark.diagnosis.rules import batches, files, output, phases, reading, servers, state
from metaq_spark.diagnosis.rules.row import C, Rule

UNKNOWN: Final = Rule("U0", "the evidence does not say", (), "Give what is missing, and look again.", "{watch}")
NOT_OURS: Final = Rule(
    "F0",
    "the checkpoint is of another connector",
    (C,),
    "This command knows the positions of format('metaq') and format('rocketmq') only; look at the query's progress.",
    "query.lastProgress  # in the driver",
)

RULES: Final[Mapping[str, Rule]] = {
    rule.id: rule
    for rule in (
        *files.RULES,
        *reading.RULES,
        *batches.RULES,
        *servers.RULES,
        *output.RULES,
        *state.RULES,
        *phases.RULES,
        UNKNOWN,
        NOT_OURS,
    )
}
"""By id. Of several reasons for a verdict, the first is its headline."""
