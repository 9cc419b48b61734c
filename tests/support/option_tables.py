"""How the tables of the documentation spell an option's uses and its default."""

from __future__ import annotations

from metaq_spark.options.table import ANY, READ, WRITE, Option, Use


def use(option: Option) -> str:
    """The words for what it may be given to."""
    for words, uses in (("any", ANY), ("read", READ), ("write", WRITE)):
        if option.uses == uses:
            return words
    return ", ".join(each.value for each in Use if each in option.uses)


def default(option: Option) -> str:
    """Its default, or one for each use."""
    if isinstance(option.default, str):
        return option.default or "none"
    return ", ".join(f"{text} ({each.value})" for each, text in option.default.items())


def option_rows(options: tuple[Option, ...]) -> list[list[str]]:
    """The rows of the whole table: option, for, default, what it does."""
    return [[f"`{option.name}`", use(option), default(option), option.doc] for option in options]
