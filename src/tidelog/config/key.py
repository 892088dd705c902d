"""What one setting is: its type, which values it takes, how its text is read and written.

Reasons of refusal keep the short forms that Kafka's clients show to people ("Value must be at least 1").
"""

from enum import IntEnum
from typing import NamedTuple, TypeAlias

from tidelog.config.addresses import counts_by_address
from tidelog.config.java_text import boolean, double, double_text, integer, is_class_name, items, trimmed

Value: TypeAlias = bool | int | float | str | list[str] | None


class Type(IntEnum):
    """The numbers are those of `config_type` in DescribeConfigs (KIP-569)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


TEXT_BYTES_MAX = 32_767
"""Of one value: a message holds no longer one. A list to which was appended could not be told any more."""


HIDDEN = "[hidden]"
"""Stands in messages for a secret, as in Kafka's."""


class InvalidValue(ValueError):
    """A text that a setting does not take; the message names the value, the setting and the reason."""

    def __init__(self, name: str, shown: object, reason: str) -> None:
        super().__init__(f"Invalid value {shown} for configuration {name}: {reason}")


class Valid:
    """Which values of its type a setting takes."""

    __slots__ = ()

    def refusal(self, value: Value) -> tuple[object, str] | None:
        """None, or what to show and why it is refused."""
        raise NotImplementedError


class AtLeast(Valid):
    __slots__ = ("low",)

    def __init__(self, low: float) -> None:
        self.low = low

    def refusal(self, value: Value) -> tuple[object, str] | None:
        assert isinstance(value, int | float)
        return (_shown(value), f"Value must be at least {self.low}") if value < self.low else None


class Between(Valid):
    __slots__ = ("high", "low")

    def __init__(self, low: float, high: float) -> None:
        self.low = low
        self.high = high

    def refusal(self, value: Value) -> tuple[object, str] | None:
        assert isinstance(value, int | float)
        if value < self.low:
            return _shown(value), f"Value must be at least {self.low}"
        return (_shown(value), f"Value must be no more than {self.high}") if value > self.high else None


class BetweenOr(Valid):
    __slots__ = ("high", "low", "other")

    def __init__(self, low: int, high: int, other: int) -> None:
        self.low = low
        self.high = high
        self.other = other

    def refusal(self, value: Value) -> tuple[object, str] | None:
        assert isinstance(value, int)
        if value == self.other or self.low <= value <= self.high:
            return None
        return value, f"Value must be between {self.low} and {self.high} or equal to {self.other}"


class OneOf(Valid):
    __slots__ = ("values",)

    def __init__(self, values: tuple[str, ...]) -> None:
        self.values = values

    def refusal(self, value: Value) -> tuple[object, str] | None:
        return None if value in self.values else (value, f"String must be one of: {', '.join(self.values)}")


class OneOfIgnoringCase(OneOf):
    __slots__ = ()

    def refusal(self, value: Value) -> tuple[object, str] | None:
        assert isinstance(value, str)
        if value.upper() in self.values:
            return None
        return value, f"String must be one of (case insensitive): {', '.join(self.values)}"


class SomeItems(Valid):
    """A list that is not empty."""

    __slots__ = ()

    def refusal(self, value: Value) -> tuple[object, str] | None:
        return ("[]", "the list must not be empty") if value == [] else None


class ListOf(OneOf):
    """A list of these values; not the empty list where `empty` is false."""

    __slots__ = ("empty",)

    def __init__(self, values: tuple[str, ...], *, empty: bool = True) -> None:
        super().__init__(values)
        self.empty = empty

    def refusal(self, value: Value) -> tuple[object, str] | None:
        assert isinstance(value, list)
        if not value and not self.empty:
            return "[]", "the list must not be empty"
        for item in value:
            if item not in self.values:
                return item, f"String must be one of: {', '.join(self.values)}"
        return None


class NonEmpty(Valid):
    __slots__ = ()

    def refusal(self, value: Value) -> tuple[object, str] | None:
        return (value, "String must be non-empty") if value == "" else None


class PerAddress(Valid):
    """A text of ADDRESS:COUNT,..."""

    __slots__ = ()

    def refusal(self, value: Value) -> tuple[object, str] | None:
        assert isinstance(value, str)
        try:
            counts_by_address(value)
        except ValueError as error:
            return value, str(error)
        return None


class ThrottledReplicas(Valid):
    __slots__ = ()

    def refusal(self, value: Value) -> tuple[object, str] | None:
        assert isinstance(value, list)
        if value == ["*"] or all(not item or _is_replica(item) for item in value):
            return None
        return f"[{', '.join(value)}]", "takes * or a list of PARTITION:BROKER"


class Key(NamedTuple):
    """One row of the table of settings."""

    name: str
    type: Type
    default: str | None
    """As text; None: null, or it has to be set."""
    valid: Valid | None = None
    doc: str = ""
    effect: bool = False
    """Whether the code reads it; a test compares this with the code. Without effect it is stored and shown."""
    read_only: bool = False
    """A broker's setting that takes a restart."""
    hidden: bool = False
    """Described only where it is set, as Kafka does with its internal ones."""
    synonyms: tuple[tuple[str, int], ...] = ()
    """Of a topic's or a group's setting: the broker's that give its default, and factors. The first set counts."""

    @property
    def sensitive(self) -> bool:
        """Whether its value is never shown, logged or stored in the journal."""
        return self.type is Type.PASSWORD


_BITS = {Type.SHORT: 16, Type.INT: 32, Type.LONG: 64}


def parse(key: Key, text: str) -> Value:
    """The value that `text` stands for, as Kafka reads it. Raises InvalidValue."""
    if len(text) * 4 > TEXT_BYTES_MAX and len(text.encode()) > TEXT_BYTES_MAX:
        shown = HIDDEN if key.sensitive else f"{text[:20]}..."
        raise InvalidValue(key.name, shown, f"it is longer than {TEXT_BYTES_MAX} bytes")
    stripped = trimmed(text)
    value: Value = stripped
    if key.type is Type.LIST:
        value = _list(key, text, stripped)
    elif key.type is Type.CLASS:
        if not is_class_name(stripped):
            raise InvalidValue(key.name, text, "it is no name of a Java class")
    elif key.type is not Type.STRING and key.type is not Type.PASSWORD:
        value = _scalar(key, text, stripped)
    if key.valid is not None:
        refused = key.valid.refusal(value)
        if refused is not None:
            raise InvalidValue(key.name, *refused)
    return value


def _scalar(key: Key, text: str, stripped: str) -> bool | int | float:
    value: bool | int | float | None
    if key.type is Type.BOOLEAN:
        value = boolean(stripped)
    elif key.type is Type.DOUBLE:
        value = double(stripped)
    else:
        value = integer(stripped, _BITS[key.type])
    if value is None:
        boolean_reason = "Expected value to be either true or false"
        reason = boolean_reason if key.type is Type.BOOLEAN else f"Not a number of type {key.type.name}"
        raise InvalidValue(key.name, text, reason)
    return value


def _list(key: Key, text: str, stripped: str) -> list[str]:
    """The items, each once, none of them empty; throttled replicas are as they were given, as in Kafka."""
    found = items(stripped)
    if isinstance(key.valid, ThrottledReplicas):
        return found
    if "" in found:
        raise InvalidValue(key.name, text, "an item of the list is empty")
    return list(dict.fromkeys(found))


def default_value(key: Key) -> Value:
    return None if key.default is None else parse(key, key.default)


def normal_text(value: Value) -> str | None:
    """A value as DescribeConfigs shows it."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ",".join(value)
    return double_text(value) if isinstance(value, float) else str(value)


def _shown(value: float) -> object:
    return double_text(value) if isinstance(value, float) else value


def _is_replica(item: str) -> bool:
    partition, colon, broker = item.partition(":")
    return colon == ":" and partition.isascii() and partition.isdigit() and broker.isascii() and broker.isdigit()
