"""The language of values in conversation files. A text is parsed to an expression and evaluated to a Python value.

    value := null | true | false | 12 | 0x1f | "text ${name}" | WORD | $name
           | [value, ...] | {field=value, ...} | builder(value, ..., option=value)

A WORD without quotes is a string. In an `expect` it may be the name of an error of the protocol, which the caller
replaces by the error's number.
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
    """A conversation file or a rule cannot be parsed. The message says where, and what is wrong."""


class Name(NamedTuple):
    """The name of a variable, which an earlier answer or the runner has set."""

    name: str


class Text(NamedTuple):
    """A string that may contain ${variables}."""

    text: str


class BuilderCall(NamedTuple):
    """A call of a named builder."""

    builder: str
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]


class Scanner:
    """The tokens of one text, and the current position among them."""

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

    def next_token(self) -> str:
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
    """Parse `text`, which must be exactly one value. Return the expression."""
    scanner = Scanner(text)
    value = _value(scanner)
    if scanner.kind != "end":
        raise BadText(f"more than a value: {text!r}")
    return value


def parse_fields(text: str) -> dict[str, Any]:
    """Parse `name=value name=value ...`, the top-level fields of a request."""
    scanner = Scanner(text)
    fields: dict[str, Any] = {}
    while scanner.kind != "end":
        _field(scanner, fields)
    return fields


def _field(scanner: Scanner, fields: dict[str, Any]) -> None:
    # A key of a map may be a string, because names of settings (retention.ms) are keys.
    if scanner.kind not in ("word", "string"):
        raise BadText(f"a field name expected, not {scanner.token!r}, in {scanner.text!r}")
    name = scanner.next_token().strip('"')
    scanner.require("=")
    if name in fields:
        raise BadText(f"field {name} twice in {scanner.text!r}")
    fields[name] = _value(scanner)


def _value(scanner: Scanner) -> Any:
    kind = scanner.kind
    if kind == "number":
        return int(scanner.next_token(), 0)
    if kind == "string":
        return Text(re.sub(r"\\(.)", lambda m: ESCAPED.get(m[1], m[1]), scanner.next_token()[1:-1]))
    if kind == "name":
        return Name(scanner.next_token()[1:])
    if scanner.accept("["):
        return _list(scanner, "]")
    if scanner.accept("{"):
        return _map(scanner)
    if kind != "word":
        raise BadText(f"a value expected, not {scanner.token!r}, in {scanner.text!r}")
    word = scanner.next_token()
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


def _call(scanner: Scanner, builder: str) -> BuilderCall:
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
    return BuilderCall(builder, tuple(arguments), options)


def evaluate(expression: Any, variables: Mapping[str, Any], builders: Mapping[str, Builder]) -> Any:
    """Return the value of an expression. Raises BadText for an unknown variable or builder."""
    if isinstance(expression, Name):
        return _variable(expression.name, variables)
    if isinstance(expression, Text):
        return INTERPOLATED.sub(lambda m: str(_variable(m[1], variables)), expression.text)
    if isinstance(expression, BuilderCall):
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
