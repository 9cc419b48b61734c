"""The result of a diagnosis, as a value, as JSON and as text for people. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from metaq_spark.diagnosis.evidence import EvidenceKind, Missing
from metaq_spark.diagnosis.rules.chinese import MISSING, NUMBERS, UNITS
from metaq_spark.diagnosis.rules.row import seconds
from metaq_spark.diagnosis.verdict import EXIT_CODES, Number, QueryVerdict, RuleFinding

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A verdict. ``findings``: the reason of the verdict first. ``figures``: of ``figures.figures``."""

    verdict: QueryVerdict
    findings: tuple[RuleFinding, ...]
    missing: tuple[Missing, ...]
    figures: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rule(self) -> str:
        return self.findings[0].rule

    @property
    def sentence(self) -> str:
        return self.findings[0].sentence

    @property
    def advice(self) -> str:
        return self.findings[0].advice

    @property
    def command(self) -> str:
        return self.findings[0].command

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]

    def tree(self) -> dict[str, Any]:
        """Return it as JSON; docs/diagnosis.md describes the form."""
        head = {
            "v": VERSION,
            "verdict": str(self.verdict),
            "rule": self.rule,
            "sentence": self.sentence,
            "advice": self.advice,
            "command": self.command,
        }
        return {
            **head,
            **self.figures,
            "findings": [_finding(one) for one in self.findings],
            "missing": [_missing(one) for one in self.missing],
        }

    def text(self) -> str:
        """Return it for people, in lines."""
        return _text(self)


def _text(diagnosis: Diagnosis) -> str:
    """Return a diagnosis in lines."""
    known = diagnosis.figures
    name = known.get("name") or known.get("query_id") or "query"
    lines = [f"{name}: {str(diagnosis.verdict).upper()}"]
    reasons = [one for one in diagnosis.findings if one.verdict is not None]
    remarks = [one for one in diagnosis.findings if one.verdict is None]
    for one in reasons:
        lines += [f"  {one.rule:4} {one.sentence}", *_figures(one.numbers)]
    lines += [f"  do   {diagnosis.advice}", f"  look {diagnosis.command}"]
    for one in remarks:
        lines += ["", f"  {one.rule:4} {one.sentence}", *_figures(one.numbers), f"  do   {one.advice}"]
    if diagnosis.missing:
        lines.append("")
        lines += [f"  not known: {one.what} (give {one.give})" for one in diagnosis.missing]
    return "\n".join([*lines, "", *_ages(known)])


def _figures(numbers: tuple[Number, ...]) -> list[str]:
    shown = [
        f"{one.name} {one.value}{'' if not one.unit else f' {one.unit}'}"
        + (f" ({seconds(one.age_s)} old)" if one.age_s >= 1 else "")
        for one in numbers
    ]
    return [f"       {' · '.join(shown)}"] if shown else []


_NAMES: Final = {
    EvidenceKind.FOLDER: "checkpoint",
    EvidenceKind.PROGRESS: "progress",
    EvidenceKind.BROKERS: "brokers",
    EvidenceKind.STATUS: "status",
    EvidenceKind.UI: "Spark's UI",
}


def _ages(known: Any) -> Iterator[str]:
    parts = []
    for kind, one in (known.get("evidence") or {}).items():
        if one is not None:
            parts.append(f"{_NAMES[EvidenceKind(kind)]} {seconds(one['age_s'])} old")
    yield f"  seen: {', '.join(parts) or 'nothing'}"


def _missing(missing: Missing) -> dict[str, Any]:
    chinese = MISSING.get(missing.what, missing.what)
    return {"evidence": str(missing.kind), "what": missing.what, "give": missing.give, "what_zh": chinese}


def _finding(finding: RuleFinding) -> dict[str, Any]:
    return {
        "rule": finding.rule,
        "title": finding.title,
        "block": finding.block,
        "verdict": None if finding.verdict is None else str(finding.verdict),
        "sentence": finding.sentence,
        "advice": finding.advice,
        "command": finding.command,
        "numbers": [
            {"name": one.name, "value": one.value, "unit": one.unit, "age_s": round(one.age_s, 3)}
            for one in finding.numbers
        ],
        "zh": {
            "title": finding.chinese[0],
            "advice": finding.chinese[1],
            "numbers": [
                {"name": NUMBERS.get(one.name, one.name), "value": one.value, "unit": UNITS.get(one.unit, one.unit)}
                for one in finding.numbers
            ],
        },
    }
