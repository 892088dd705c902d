"""The value language of conversation files: text -> expression -> plain Python value.

    value := null | true | false | 12 | 0x1f | "text ${name}" | WORD | $name
           | [value, ...] | {field=value, ...} | builder(value, ..., option=value)

A bare WORD is a string, except the error names of the protocol in an `expect` (resolved by the caller).
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

TOKEN = re.compile(
    r"""\s*(?:
      (?P<number>-?0x[0-9a-fA-F]+|-?\d+(?![\w.-]))
    | (?P<string>"(?:[^"\\]|\\.)*")
    | (?P<name>\$\w+)
    | (?P<word>[A-Za-z_][\w.\-]*)
    | (?P<mark>[\[\]{}(),=])
    )""",
    re.VERBOSE,
)
INTERPOLATED = re.compile(r"\$\{(\w+)\}")
ESCAPED = {"n": "\n", "t": "\t", "0": "\0"}
CONSTANTS: Mapping[str, Any] = {"null": None, "true": True, "false": False}

Builder = Callable[..., Any]


class BadText(ValueError):
    """A conversation file that cannot be read; the message says what and where."""


class Name(NamedTuple):
    """A variable that an earlier answer, or the runner, has set."""

    name: str


class Text(NamedTuple):
    """A string that may hold ${variables}."""

    text: str


class Built(NamedTuple):
    """A call of a named builder."""

    builder: str
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]


class Scanner:
    """Tokens of one piece of text, with one token of look-ahead."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[tuple[str, str]] = []
        position = 0
        end = len(text.rstrip())
        while position < end:
            match = TOKEN.match(text, position)
            if match is None:
                raise BadText(f"cannot read {text[position:][:40]!r}")
            kind = match.lastgroup
            assert kind is not None
            self.tokens.append((kind, match.group(kind)))
            position = match.end()
        self.tokens.append(("end", ""))
        self.index = 0

    @property
    def kind(self) -> str:
        return self.tokens[self.index][0]

    @property
    def token(self) -> str:
        return self.tokens[self.index][1]

    def take(self) -> str:
        token = self.token
        self.index += 1
        return token

    def accept(self, mark: str) -> bool:
        if self.kind == "mark" and self.token == mark:
            self.index += 1
            return True
        return False

    def require(self, mark: str) -> None:
        if not self.accept(mark):
            raise BadText(f"{mark!r} expected, not {self.token!r}, in {self.text!r}")


def parse_value(text: str) -> Any:
    """The expression in `text`, which must be exactly one value."""
    scanner = Scanner(text)
    value = _value(scanner)
    if scanner.kind != "end":
        raise BadText(f"more than a value: {text!r}")
    return value


def parse_fields(text: str) -> dict[str, Any]:
    """`name=value name=value ...`: the top-level fields of a request."""
    scanner = Scanner(text)
    fields: dict[str, Any] = {}
    while scanner.kind != "end":
        _field(scanner, fields)
    return fields


def _field(scanner: Scanner, fields: dict[str, Any]) -> None:
    # Setting names (retention.ms) are written as strings when they are keys of a map.
    if scanner.kind not in ("word", "string"):
        raise BadText(f"a field name expected, not {scanner.token!r}, in {scanner.text!r}")
    name = scanner.take().strip('"')
    scanner.require("=")
    if name in fields:
        raise BadText(f"field {name} twice in {scanner.text!r}")
    fields[name] = _value(scanner)


def _value(scanner: Scanner) -> Any:
    kind = scanner.kind
    if kind == "number":
        return int(scanner.take(), 0)
    if kind == "string":
        return Text(re.sub(r"\\(.)", lambda m: ESCAPED.get(m[1], m[1]), scanner.take()[1:-1]))
    if kind == "name":
        return Name(scanner.take()[1:])
    if scanner.accept("["):
        return _list(scanner, "]")
    if scanner.accept("{"):
        return _map(scanner)
    if kind != "word":
        raise BadText(f"a value expected, not {scanner.token!r}, in {scanner.text!r}")
    word = scanner.take()
    if scanner.accept("("):
        return _call(scanner, word)
    return CONSTANTS[word] if word in CONSTANTS else Text(word)


def _list(scanner: Scanner, end: str) -> list[Any]:
    items: list[Any] = []
    while not scanner.accept(end):
        items.append(_value(scanner))
        if not scanner.accept(","):
            scanner.require(end)
            break
    return items


def _map(scanner: Scanner) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    while not scanner.accept("}"):
        _field(scanner, fields)
        if not scanner.accept(","):
            scanner.require("}")
            break
    return fields


def _call(scanner: Scanner, builder: str) -> Built:
    arguments: list[Any] = []
    options: dict[str, Any] = {}
    while not scanner.accept(")"):
        if scanner.kind == "word" and scanner.tokens[scanner.index + 1] == ("mark", "="):
            _field(scanner, options)
        else:
            arguments.append(_value(scanner))
        if not scanner.accept(","):
            scanner.require(")")
            break
    return Built(builder, tuple(arguments), options)


def evaluate(expression: Any, variables: Mapping[str, Any], builders: Mapping[str, Builder]) -> Any:
    """The plain value of an expression. Raises BadText for an unknown variable or builder."""
    if isinstance(expression, Name):
        return _variable(expression.name, variables)
    if isinstance(expression, Text):
        return INTERPOLATED.sub(lambda m: str(_variable(m[1], variables)), expression.text)
    if isinstance(expression, Built):
        if expression.builder not in builders:
            raise BadText(f"no builder {expression.builder}; there are: {', '.join(sorted(builders))}")
        arguments = [evaluate(a, variables, builders) for a in expression.arguments]
        options = {name: evaluate(o, variables, builders) for name, o in expression.options.items()}
        return builders[expression.builder](*arguments, **options)
    if isinstance(expression, list):
        return [evaluate(item, variables, builders) for item in expression]
    if isinstance(expression, dict):
        return {name: evaluate(item, variables, builders) for name, item in expression.items()}
    return expression


def _variable(name: str, variables: Mapping[str, Any]) -> Any:
    if name not in variables:
        raise BadText(f"no variable ${name}; there are: {', '.join(sorted(variables))}")
    return variables[name]
