"""The definition of one setting: its type, the values that it accepts, and how its text is read and written.

Messages about refused values use Kafka's words where Kafka has the same check ("Value must be at least 1").
"""

from enum import IntEnum
from typing import NamedTuple, TypeAlias

from tidelog.config.addresses import counts_by_address
from tidelog.config.java_text import (
    double_text,
    is_class_name,
    parse_boolean,
    parse_double,
    parse_integer,
    parse_list,
    trim,
)

Value: TypeAlias = bool | int | float | str | list[str] | None


class Type(IntEnum):
    """The types of values. The numbers are those of `config_type` in DescribeConfigs (KIP-569)."""

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
"""Upper bound on the text of one value, in bytes: a protocol message cannot contain a longer string."""


HIDDEN = "[hidden]"
"""The text that replaces a secret value in messages, as in Kafka."""


class InvalidValue(ValueError):
    """A setting does not accept a value. The message names the value, the setting and the reason."""

    def __init__(self, name: str, value: object, reason: str) -> None:
        super().__init__(f"Invalid value {value} for configuration {name}: {reason}")


class Validator:
    """Checks whether a setting accepts a value, which already has the setting's type."""

    __slots__ = ()

    def refusal(self, value: Value) -> tuple[object, str] | None:
        """Return None if the value is accepted. Otherwise return the value to show and the reason."""
        raise NotImplementedError


class AtLeast(Validator):
    __slots__ = ("minimum",)

    def __init__(self, minimum: float) -> None:
        self.minimum = minimum

    def refusal(self, value: Value) -> tuple[object, str] | None:
        assert isinstance(value, int | float)
        return (_value_for_message(value), f"Value must be at least {self.minimum}") if value < self.minimum else None


class Between(Validator):
    __slots__ = ("maximum", "minimum")

    def __init__(self, minimum: float, maximum: float) -> None:
        self.minimum = minimum
        self.maximum = maximum

    def refusal(self, value: Value) -> tuple[object, str] | None:
        assert isinstance(value, int | float)
        if value < self.minimum:
            return _value_for_message(value), f"Value must be at least {self.minimum}"
        return (
            (_value_for_message(value), f"Value must be no more than {self.maximum}") if value > self.maximum else None
        )


class BetweenOrEqualTo(Validator):
    __slots__ = ("alternative", "maximum", "minimum")

    def __init__(self, minimum: int, maximum: int, alternative: int) -> None:
        self.minimum = minimum
        self.maximum = maximum
        self.alternative = alternative

    def refusal(self, value: Value) -> tuple[object, str] | None:
        assert isinstance(value, int)
        if value == self.alternative or self.minimum <= value <= self.maximum:
            return None
        return value, f"Value must be between {self.minimum} and {self.maximum} or equal to {self.alternative}"


class OneOf(Validator):
    __slots__ = ("values",)

    def __init__(self, values: tuple[str, ...]) -> None:
        self.values = values

    def refusal(self, value: Value) -> tuple[object, str] | None:
        return None if value in self.values else (value, f"String must be one of: {', '.join(self.values)}")


class OneOfIgnoringCase(OneOf):
    """Accepts each of `values` in upper, lower or mixed case. The `values` themselves must be in upper case."""

    __slots__ = ()

    def refusal(self, value: Value) -> tuple[object, str] | None:
        assert isinstance(value, str)
        if value.upper() in self.values:
            return None
        return value, f"String must be one of (case insensitive): {', '.join(self.values)}"


class NonEmptyList(Validator):
    """A list that is not empty."""

    __slots__ = ()

    def refusal(self, value: Value) -> tuple[object, str] | None:
        return ("[]", "the list must not be empty") if value == [] else None


class ListOf(OneOf):
    """A list whose items are among `values`. The list may be empty only if `may_be_empty` is true."""

    __slots__ = ("may_be_empty",)

    def __init__(self, values: tuple[str, ...], *, may_be_empty: bool = True) -> None:
        super().__init__(values)
        self.may_be_empty = may_be_empty

    def refusal(self, value: Value) -> tuple[object, str] | None:
        assert isinstance(value, list)
        if not value and not self.may_be_empty:
            return "[]", "the list must not be empty"
        for item in value:
            if item not in self.values:
                return item, f"String must be one of: {', '.join(self.values)}"
        return None


class NonEmptyText(Validator):
    __slots__ = ()

    def refusal(self, value: Value) -> tuple[object, str] | None:
        return (value, "String must be non-empty") if value == "" else None


class CountsByAddress(Validator):
    """A text of the form ADDRESS:COUNT,..."""

    __slots__ = ()

    def refusal(self, value: Value) -> tuple[object, str] | None:
        assert isinstance(value, str)
        try:
            counts_by_address(value)
        except ValueError as error:
            return value, str(error)
        return None


class ThrottledReplicas(Validator):
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
    """The default, as text. None if the default is null, and for a setting that has no default and must be set."""
    validator: Validator | None = None
    doc: str = ""
    effect: bool = False
    """Whether Tidelog uses the setting; a test compares this with the code. A setting that is not used is only
    stored and described."""
    read_only: bool = False
    """Whether a change of this broker setting needs a restart."""
    hidden: bool = False
    """Whether the setting is described only if it is set, like Kafka's internal settings."""
    synonyms: tuple[tuple[str, int], ...] = ()
    """Only for settings of topics and groups: the broker settings that supply the default. The first one that has a
    value is used. Each one has a factor that converts its value to the unit of this setting (for example hours to
    milliseconds)."""

    @property
    def sensitive(self) -> bool:
        """Whether the value is secret. A secret is never shown, logged or stored in the journal."""
        return self.type is Type.PASSWORD


_BITS = {Type.SHORT: 16, Type.INT: 32, Type.LONG: 64}


def parse(key: Key, text: str) -> Value:
    """Parse `text` as Kafka does, and return the value. Raises InvalidValue if the setting does not accept it."""
    # A character has at most 4 bytes in UTF-8, so only long texts are encoded to find out their size.
    if len(text) * 4 > TEXT_BYTES_MAX and len(text.encode()) > TEXT_BYTES_MAX:
        shown_text = HIDDEN if key.sensitive else f"{text[:20]}..."
        raise InvalidValue(key.name, shown_text, f"it is longer than {TEXT_BYTES_MAX} bytes")
    stripped = trim(text)
    value: Value = stripped
    if key.type is Type.LIST:
        value = _parse_list(key, text, stripped)
    elif key.type is Type.CLASS:
        if not is_class_name(stripped):
            raise InvalidValue(key.name, text, "it is not a valid Java class name")
    elif key.type is not Type.STRING and key.type is not Type.PASSWORD:
        value = _parse_scalar(key, text, stripped)
    if key.validator is not None:
        refusal = key.validator.refusal(value)
        if refusal is not None:
            raise InvalidValue(key.name, *refusal)
    return value


def _parse_scalar(key: Key, text: str, stripped: str) -> bool | int | float:
    value: bool | int | float | None
    if key.type is Type.BOOLEAN:
        value = parse_boolean(stripped)
    elif key.type is Type.DOUBLE:
        value = parse_double(stripped)
    else:
        value = parse_integer(stripped, _BITS[key.type])
    if value is None:
        boolean_reason = "Expected value to be either true or false"
        reason = boolean_reason if key.type is Type.BOOLEAN else f"Not a number of type {key.type.name}"
        raise InvalidValue(key.name, text, reason)
    return value


def _parse_list(key: Key, text: str, stripped: str) -> list[str]:
    """Return the items without duplicates. Raises InvalidValue for an empty item.

    Lists of throttled replicas are returned unchanged, as in Kafka.
    """
    list_items = parse_list(stripped)
    if isinstance(key.validator, ThrottledReplicas):
        return list_items
    if "" in list_items:
        raise InvalidValue(key.name, text, "an item of the list is empty")
    return list(dict.fromkeys(list_items))


def default_value(key: Key) -> Value:
    return None if key.default is None else parse(key, key.default)


def normal_text(value: Value) -> str | None:
    """Return a value as text, in the form that DescribeConfigs returns."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ",".join(value)
    return double_text(value) if isinstance(value, float) else str(value)


def _value_for_message(value: float) -> object:
    return double_text(value) if isinstance(value, float) else value


def _is_replica(item: str) -> bool:
    partition, colon, broker = item.partition(":")
    return colon == ":" and partition.isascii() and partition.isdigit() and broker.isascii() and broker.isdigit()
