"""Compiles conditions over the properties of a message, in RocketMQ's SQL92. No input or output.

::

    condition   alternative OR alternative ...
    alternative equality AND equality ...
    equality    comparison  { = comparison | <> comparison | IS [NOT] NULL }
    comparison  operand     { > operand | >= | < | <= | [NOT] BETWEEN operand AND operand | [NOT] IN ('text', ...)
                            | [NOT] CONTAINS 'text' | [NOT] STARTSWITH 'text' | [NOT] ENDSWITH 'text' }
    operand     NOT operand | + operand | - operand | (condition) | name | 'text' | number | TRUE | FALSE | NULL

Keywords are case-insensitive, property names are not. A property is a text; compared with a number it is parsed as one,
compared with TRUE or FALSE as a truth value. A comparison with a missing property is neither true nor false. A message
matches if the condition is true; it does not match if a property cannot be parsed as a number.

Results agree with RocketMQ 4.9.7, and with 5.5.0 for the last three words, which 4.9.7 ignores. Text after a complete
condition, which both ignore, is refused here.

Source: tests/golden/rocketmq/sql_conditions.json, results of RocketMQ's own evaluator.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

CHARACTERS_MAX: Final = 8192
"""Longest condition."""

DEPTH_MAX: Final = 50
"""Deepest nesting of parentheses, signs and NOT."""

CHAIN_MAX: Final = 200
"""Longest chain of postfix operators, such as ``a IS NULL IS NULL``."""

Value = str | int | float | bool | None
Properties = Mapping[str, str]
Evaluate = Callable[[Properties], Value]

_TOKEN: Final = re.compile(
    r"""(?:\s+ | --[^\r\n]* | /\*.*?\*/)+
    | (?P<number> [0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)? | \.[0-9]+(?:[eE][+-]?[0-9]+)? | [0-9]+[eE][+-]?[0-9]+
        | (?:[1-9][0-9]*|0)[lL]?)
    | (?P<name> [A-Za-z_$][A-Za-z0-9_$]*)
    | (?P<text> '(?:[^']|'')*')
    | (?P<sign> <> | <= | >= | [=<>(),+-])""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_WORDS: Final = frozenset(
    ("AND", "OR", "NOT", "BETWEEN", "IN", "IS", "NULL", "TRUE", "FALSE", "CONTAINS", "STARTSWITH", "ENDSWITH")
)
_CONSTANTS: Final[dict[str, Value]] = {"TRUE": True, "FALSE": False, "NULL": None}
_LONG: Final = re.compile(r"[+-]?[0-9]+", re.ASCII)
_DOUBLE: Final = re.compile(
    r"[+-]?(?:NaN|Infinity|(?:[0-9]++\.?[0-9]*+|\.[0-9]++)(?:[eE][+-]?[0-9]++)?[fFdD]?)", re.ASCII
)  # a text is scanned once: its length is the producer's choice
_HEXADECIMAL: Final = re.compile(
    r"[+-]?0[xX](?:[0-9a-fA-F]++\.?[0-9a-fA-F]*+|\.[0-9a-fA-F]++)[pP][+-]?[0-9]++[fFdD]?", re.ASCII
)
_BLANKS: Final = "".join(map(chr, range(33)))
"""Characters that Java trims from a text before it parses a number with a fraction."""

_LONG_LIMIT: Final = 1 << 63
_TEXTS: Final[dict[str, Callable[[str, str], bool]]] = {
    "CONTAINS": lambda value, part: part in value,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


class ConditionInvalid(ValueError):
    """A text is not a condition; the fault is at ``position``."""

    def __init__(self, position: int, reason: str) -> None:
        self.position, self.reason = position, reason
        super().__init__(f"character {position + 1}: {reason}")


class _Token(NamedTuple):
    kind: str
    text: str
    position: int

    @property
    def word(self) -> str:
        """The word in upper case, or the sign; empty for other tokens."""
        upper = self.text.upper()
        return upper if self.kind == "sign" or (self.kind == "name" and upper in _WORDS) else ""


@dataclass(frozen=True, slots=True)
class _Node:
    """A part of a condition. ``kind``: ``property``, ``constant``, ``number``, ``condition`` (true, false, neither)."""

    kind: str
    evaluate: Evaluate
    position: int
    constant: Value = None
    depth: int = 0

    def check_ordered(self) -> None:
        is_number = isinstance(self.constant, int | float) and not isinstance(self.constant, bool)
        if self.kind == "condition" or (self.kind == "constant" and not is_number):
            raise ConditionInvalid(self.position, "only properties and numbers are greater or less than another")

    def as_condition(self) -> Evaluate:
        """Return the node as a condition. A property is false, because it is a text."""
        if self.kind == "condition" or (self.kind == "constant" and isinstance(self.constant, bool | None)):
            return self.evaluate
        if self.kind == "property":
            return lambda properties: None if self.evaluate(properties) is None else False
        raise ConditionInvalid(self.position, "expected a condition")


def compile_condition(text: str) -> Callable[[Properties], bool]:
    """Return a function that tells whether properties match the condition.

    Raises:
        ConditionInvalid: ``text`` is not a condition.
    """
    evaluate = _Parser(text).whole()

    def matches(properties: Properties) -> bool:
        try:
            return evaluate(properties) is True
        except (ValueError, OverflowError):  # a property is not a number, but compared with one
            return False

    return matches


class _Parser:
    """One method for each rule of the grammar."""

    def __init__(self, text: str) -> None:
        if len(text) > CHARACTERS_MAX:
            raise ConditionInvalid(CHARACTERS_MAX, f"a condition has at most {CHARACTERS_MAX} characters")
        self._tokens = _tokens(text)
        self._at = self._depth = 0

    def whole(self) -> Evaluate:
        found = self._condition().as_condition()
        if self._now.kind != "end":
            raise self._unexpected("the end, AND or OR")
        return found

    @property
    def _now(self) -> _Token:
        return self._tokens[self._at]

    def _take(self, *words: str) -> str:
        """Consume one of the given words or signs and return it; return an empty text if none of them is next."""
        word = self._now.word
        if word and word in words:
            self._at += 1
            return word
        return ""

    def _expect(self, word: str) -> None:
        if not self._take(word):
            raise self._unexpected(word)

    def _unexpected(self, expected: str) -> ConditionInvalid:
        shown = f"{self._now.text[:40]!r}" if self._now.text else "the end"
        return ConditionInvalid(self._now.position, f"expected {expected}, found {shown}")

    def _condition(self) -> _Node:
        found = [self._alternative()]
        while self._take("OR"):
            found.append(self._alternative())
        return _joined(found, decides=True)

    def _alternative(self) -> _Node:
        found = [self._equality()]
        while self._take("AND"):
            found.append(self._equality())
        return _joined(found, decides=False)

    def _equality(self) -> _Node:
        found = self._comparison()
        while word := self._take("=", "<>", "IS"):
            if word == "IS":
                is_wanted = not self._take("NOT")
                self._expect("NULL")
                found = _is_null(found, is_wanted)
            else:
                equal = _equal(found, self._comparison())
                found = equal if word == "=" else _negated(equal)
        return found

    def _comparison(self) -> _Node:
        found = self._operand()
        while word := self._take(">", ">=", "<", "<=", "NOT", "BETWEEN", "IN", *_TEXTS):
            is_negated = word == "NOT"
            if is_negated and not (word := self._take("BETWEEN", "IN", *_TEXTS)):
                raise self._unexpected("BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH")
            if word == "BETWEEN":
                found = self._between(found, is_negated)
            elif word in (">", ">=", "<", "<="):
                found = _ordered(found, self._operand(), word)
            elif word == "IN":
                found = _negated(self._among(found)) if is_negated else self._among(found)
            else:
                found = self._part(found, word, is_negated)
        return found

    def _between(self, value: _Node, is_negated: bool) -> _Node:
        low = self._operand()
        self._expect("AND")
        high = self._operand()
        numbers = low.constant, high.constant
        if isinstance(numbers[0], int | float) and isinstance(numbers[1], int | float) and numbers[0] > numbers[1]:
            raise ConditionInvalid(low.position, "BETWEEN has a lower bound above its upper bound")
        if is_negated:
            return _joined([_ordered(value, low, "<"), _ordered(value, high, ">")], decides=True)
        return _joined([_ordered(value, low, ">="), _ordered(value, high, "<=")], decides=False)

    def _among(self, value: _Node) -> _Node:
        self._expect("(")
        texts = {self._text()}
        while self._take(","):
            texts.add(self._text())
        self._expect(")")
        return _about(value, lambda found: found in texts, missing=None)

    def _part(self, value: _Node, word: str, is_negated: bool) -> _Node:
        part, test = self._text(), _TEXTS[word]
        return _about(value, lambda found: part != "" and test(str(found), part) is not is_negated, missing=False)

    def _text(self) -> str:
        token = self._now
        if token.kind != "text":
            raise self._unexpected("a text in single quotation marks")
        self._at += 1
        return token.text[1:-1].replace("''", "'")

    def _operand(self) -> _Node:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise ConditionInvalid(self._now.position, f"more than {DEPTH_MAX} parts inside each other")
        try:
            position = self._now.position
            match self._take("NOT", "+", "-", "(", *_CONSTANTS):
                case "NOT":
                    inner = self._operand()
                    return _negated(_Node("condition", inner.as_condition(), position, depth=inner.depth))
                case "+":
                    return self._operand()
                case "-":
                    return _minus(self._operand(), position)
                case "(":
                    inside = self._condition()
                    self._expect(")")
                    return inside
                case "":
                    return self._simple()
                case word:
                    return _constant(_CONSTANTS[word], position)
        finally:
            self._depth -= 1

    def _simple(self) -> _Node:
        token = self._now
        if token.kind == "text":
            return _constant(self._text(), token.position)
        if token.kind == "number":
            self._at += 1
            return _constant(_number(token), token.position)
        if token.kind != "name" or token.word:
            raise self._unexpected("a property, a text or a number")
        self._at += 1
        name = token.text
        return _Node("property", lambda properties: properties.get(name), token.position)


def _tokens(text: str) -> list[_Token]:
    found, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ConditionInvalid(at, f"{text[at : at + 10]!r} cannot be read")
        if match.lastgroup is not None:
            found.append(_Token(match.lastgroup, match[0], at))
        at = match.end()
    return [*found, _Token("end", "", at)]


def _number(token: _Token) -> int | float:
    text = token.text
    if text.rstrip("lL").isdecimal():
        whole = int(text.rstrip("lL"))
        if whole < _LONG_LIMIT:
            return whole
    elif math.isfinite(number := float(text)):
        return number
    raise ConditionInvalid(token.position, f"{text} is out of range")


def _constant(value: Value, position: int) -> _Node:
    return _Node("constant", lambda _: value, position, value)


def _minus(of: _Node, position: int) -> _Node:
    if isinstance(of.constant, int | float) and not isinstance(of.constant, bool):
        return _constant(-of.constant, position)
    return _Node("number", lambda _: None, position)  # a property is a text, which has no negative


def _negated(of: _Node) -> _Node:
    def evaluate(properties: Properties) -> Value:
        found = of.evaluate(properties)
        return None if found is None else not found

    return _made_of([of], evaluate)


def _made_of(parts: Sequence[_Node], evaluate: Evaluate) -> _Node:
    """Return a condition that evaluates others.

    Raises:
        ConditionInvalid: The conditions are nested too deeply.
    """
    depth = 1 + max(each.depth for each in parts)
    if depth > CHAIN_MAX:
        raise ConditionInvalid(parts[0].position, f"more than {CHAIN_MAX} parts are chained")
    return _Node("condition", evaluate, parts[0].position, depth=depth)


def _joined(parts: Sequence[_Node], *, decides: bool) -> _Node:
    """Return OR, if ``decides`` is true, or AND, if it is false."""
    if len(parts) == 1:
        return parts[0]
    conditions = [each.as_condition() for each in parts]

    def evaluate(properties: Properties) -> Value:
        is_known = True
        for condition in conditions:
            found = condition(properties)
            if found is decides:
                return decides
            is_known &= found is not None
        return not decides if is_known else None

    return _made_of(parts, evaluate)


def _is_null(of: _Node, is_wanted: bool) -> _Node:
    return _made_of([of], lambda properties: (of.evaluate(properties) is None) is is_wanted)


def _about(of: _Node, test: Callable[[Value], bool], missing: Value) -> _Node:
    """Return a condition on the text of one property."""
    if of.kind != "property":
        raise ConditionInvalid(of.position, "expected a property")

    def evaluate(properties: Properties) -> Value:
        found = of.evaluate(properties)
        return missing if found is None else test(found)

    return _made_of([of], evaluate)


def _equal(left: _Node, right: _Node) -> _Node:
    for side in (left, right):
        if side.kind == "constant" and side.constant is None:
            raise ConditionInvalid(side.position, "NULL is compared with IS NULL or IS NOT NULL")
    if isinstance(left.constant, bool) and right.kind == "constant" and not isinstance(right.constant, bool):
        raise ConditionInvalid(right.position, "expected a condition")

    def evaluate(properties: Properties) -> Value:
        one, other = left.evaluate(properties), right.evaluate(properties)
        if one is None or other is None:
            return None if one is None and other is not None else one is other
        if type(one) is type(other):
            return one == other or (isinstance(one, float) and _order(one, other) == 0)
        return _order(one, other) == 0

    return _made_of([left, right], evaluate)


def _ordered(left: _Node, right: _Node, sign: str) -> _Node:
    left.check_ordered()
    right.check_ordered()
    wanted = {">": (1,), ">=": (0, 1), "<": (-1,), "<=": (-1, 0)}[sign]

    def evaluate(properties: Properties) -> Value:
        one, other = left.evaluate(properties), right.evaluate(properties)
        if one is None or other is None:
            return None
        if isinstance(one, str) and isinstance(other, str):
            one, other = _double(one), _double(other)
        return _order(one, other) in wanted

    return _made_of([left, right], evaluate)


def _order(one: Value, other: Value) -> int | None:
    """Return -1, 0 or 1; ``None`` if the values cannot be compared.

    Raises:
        ValueError: A text cannot be parsed as the type of the other value.
    """
    if isinstance(one, bool) or isinstance(other, bool):
        if isinstance(one, bool) and isinstance(other, str):
            raise ValueError("not a truth value")
        if isinstance(one, str):
            one = one.lower() == "true"
        return (one > other) - (one < other) if isinstance(one, bool) and isinstance(other, bool) else None
    if isinstance(one, str):
        one = _double(one) if isinstance(other, float) else _long(one)
    elif isinstance(other, str):
        other = _double(other) if isinstance(one, float) else _long(other)
    assert isinstance(one, int | float)
    assert isinstance(other, int | float)
    if isinstance(one, int) and isinstance(other, int):
        return (one > other) - (one < other)
    ranks = _rank(float(one)), _rank(float(other))
    return (ranks[0] > ranks[1]) - (ranks[0] < ranks[1])


def _rank(number: float) -> tuple[bool, float, bool]:
    """Return a sort key as in Java: NaN is above all numbers, 0 above -0."""
    if math.isnan(number):
        return True, 0.0, False
    return False, number, math.copysign(1, number) > 0


def _long(text: str) -> int:
    if _LONG.fullmatch(text) and -_LONG_LIMIT <= (number := int(text)) < _LONG_LIMIT:
        return number
    raise ValueError("not a whole number")


def _double(text: str) -> float:
    trimmed = text.strip(_BLANKS)
    if _DOUBLE.fullmatch(trimmed):
        return float(trimmed.rstrip("fFdD"))
    if _HEXADECIMAL.fullmatch(trimmed):
        return float.fromhex(trimmed.rstrip("fFdD"))
    raise ValueError("no number")
