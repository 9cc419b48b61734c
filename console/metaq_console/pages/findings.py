"""Findings about a Spark query in the language of a page. The looks are trees of ``metaq_spark.diagnosis``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from metaq_console.pages.texts import CHINESE

Tree = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Reading:
    """A finding in the page's language. ``detail``: the English sentence, which has the details, on other pages."""

    rule: str
    say: str
    advice: str
    detail: str = ""


def readings(look: Tree | None, language: str) -> list[Reading]:
    """Return the findings of a look, the reason of the verdict first."""
    return [reading(finding, language) for finding in (look or {}).get("findings") or ()]


def reading(finding: Tree, language: str) -> Reading:
    """Return a finding in a language; in Chinese, with the figures that the English sentence has."""
    chinese = finding.get("zh")
    if language != CHINESE or not chinese:
        return Reading(finding["rule"], finding["sentence"], finding["advice"])
    figures = "，".join(f"{one['name']} {one['value']} {one['unit']}".strip() for one in chinese["numbers"])
    say = f"{chinese['title']}（{figures}）" if figures else chinese["title"]
    return Reading(finding["rule"], f"{say}。", chinese["advice"], finding["sentence"])


def unknowns(look: Tree | None, language: str) -> list[tuple[str, str]]:
    """Return what is not known, and what to give, for each evidence that is missing."""
    key = "what_zh" if language == CHINESE else "what"
    return [(one.get(key) or one["what"], one["give"]) for one in (look or {}).get("missing") or ()]


def reason(look: Tree, language: str) -> str:
    """Return the reason of the verdict in a sentence."""
    found = readings(look, language)
    return found[0].say if found else str(look["sentence"])
