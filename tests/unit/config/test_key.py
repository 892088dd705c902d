"""Settings from text to value and back: types, ranges, refusals."""

import pytest

from tidelog.config.addresses import counts_by_address
from tidelog.config.key import (
    AtLeast,
    Between,
    BetweenOrEqualTo,
    CountsByAddress,
    InvalidValue,
    Key,
    ListOf,
    NonEmptyList,
    NonEmptyText,
    OneOf,
    OneOfIgnoringCase,
    ThrottledReplicas,
    Type,
    Validator,
    Value,
    double_text,
    normal_text,
    parse,
)


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        (Type.INT, " 7 ", 7),
        (Type.INT, "+7", 7),
        (Type.INT, "-2147483648", -(1 << 31)),
        (Type.INT, "٣", 3),
        (Type.INT, "0" * 300 + "3", 3),
        (Type.SHORT, "32767", 32767),
        (Type.LONG, "9223372036854775807", (1 << 63) - 1),
        (Type.LONG, "5\n", 5),
        (Type.BOOLEAN, "TRUE", True),
        (Type.BOOLEAN, " false", False),
        (Type.DOUBLE, ".5", 0.5),
        (Type.DOUBLE, "1e3", 1000.0),
        (Type.STRING, " a b ", "a b"),
        (Type.CLASS, "org.x.Y", "org.x.Y"),
        (Type.PASSWORD, "secret", "secret"),
        (Type.LIST, "", []),
        (Type.LIST, " a , b,c ", ["a", "b", "c"]),
        (Type.LIST, "b,a,b", ["b", "a"]),
    ],
)
def test_texts_are_read(type_: Type, text: str, value: Value) -> None:
    assert parse(Key("k", type_, None), text) == value


@pytest.mark.parametrize(
    ("type_", "text", "reason"),
    [
        (Type.INT, "abc", "Not a number of type INT"),
        (Type.INT, "", "Not a number of type INT"),
        (Type.INT, "1.5", "Not a number of type INT"),
        (Type.INT, "1_000", "Not a number of type INT"),
        (Type.INT, "2147483648", "Not a number of type INT"),
        (Type.SHORT, "32768", "Not a number of type SHORT"),
        (Type.LONG, "99999999999999999999", "Not a number of type LONG"),
        (Type.LONG, "9" * 5000, "Not a number of type LONG"),
        (Type.LONG, "-", "Not a number of type LONG"),
        (Type.INT, "\N{MATHEMATICAL BOLD DIGIT THREE}", "Not a number of type INT"),
        (Type.INT, "\N{NO-BREAK SPACE}3", "Not a number of type INT"),
        (Type.CLASS, "", "it is not a valid Java class name"),
        (Type.CLASS, "a/b", "it is not a valid Java class name"),
        (Type.DOUBLE, "x", "Not a number of type DOUBLE"),
        (Type.DOUBLE, "nan", "Not a number of type DOUBLE"),
        (Type.DOUBLE, "1_0.0", "Not a number of type DOUBLE"),
        (Type.BOOLEAN, "yes", "Expected value to be either true or false"),
        (Type.BOOLEAN, "1", "Expected value to be either true or false"),
        (Type.LIST, "a,,b", "an item of the list is empty"),
        (Type.LIST, "a,", "an item of the list is empty"),
    ],
)
def test_texts_are_refused(type_: Type, text: str, reason: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        parse(Key("some.key", type_, None), text)
    assert str(caught.value) == f"Invalid value {text} for configuration some.key: {reason}"


@pytest.mark.parametrize(
    ("type_", "valid", "text", "refused"),
    [
        (Type.INT, AtLeast(1), "0", "0: Value must be at least 1"),
        (Type.LONG, AtLeast(-1), "-2", "-2: Value must be at least -1"),
        (Type.DOUBLE, Between(0, 1), "2", "2.0: Value must be no more than 1"),
        (Type.DOUBLE, Between(0, 1), "-.1", "-0.1: Value must be at least 0"),
        (Type.INT, BetweenOrEqualTo(1, 9, -1), "0", "0: Value must be between 1 and 9 or equal to -1"),
        (Type.STRING, OneOf(("a", "b")), "A", "A: String must be one of: a, b"),
        (Type.STRING, OneOfIgnoringCase(("A",)), "b", "b: String must be one of (case insensitive): A"),
        (Type.LIST, ListOf(("a", "b")), "a,c", "c: String must be one of: a, b"),
        (Type.STRING, NonEmptyText(), " ", ": String must be non-empty"),
        (Type.LIST, NonEmptyList(), " ", "[]: the list must not be empty"),
        (Type.LIST, ListOf(("a", "b"), may_be_empty=False), "", "[]: the list must not be empty"),
        (Type.LIST, ThrottledReplicas(), "0:1,x", "[0:1, x]: takes * or a list of PARTITION:BROKER"),
    ],
)
def test_values_out_of_range_are_refused(type_: Type, valid: Validator, text: str, refused: str) -> None:
    shown, _, reason = refused.partition(": ")
    with pytest.raises(InvalidValue) as caught:
        parse(Key("k", type_, None, valid), text)
    assert str(caught.value) == f"Invalid value {shown} for configuration k: {reason}"


@pytest.mark.parametrize(
    ("valid", "type_", "texts"),
    [
        (AtLeast(1), Type.INT, ["1", "99"]),
        (Between(0, 1), Type.DOUBLE, ["0", "1", "0.5"]),
        (BetweenOrEqualTo(1, 9, -1), Type.INT, ["1", "9", "-1"]),
        (OneOfIgnoringCase(("UPGRADE",)), Type.STRING, ["upgrade", "UPGRADE"]),
        (ListOf(("a", "b")), Type.LIST, ["", "a", "b,a", "a,a"]),
        (ThrottledReplicas(), Type.LIST, ["", "*", "0:1", "0:1, 12:3", "0:1,,0:1", ","]),
        (NonEmptyList(), Type.LIST, ["a", "a,a"]),
        (Between(0, 1), Type.DOUBLE, ["NaN"]),
    ],
)
def test_values_in_range_are_taken(valid: Validator, type_: Type, texts: list[str]) -> None:
    for text in texts:
        assert normal_text(parse(Key("k", type_, None, valid), text)) is not None


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, None), (True, "true"), (False, "false"), (7, "7"), (["a", "b"], "a,b"), ([], ""), ("x", "x"), (0.5, "0.5")],
)
def test_values_are_shown(value: Value, text: str | None) -> None:
    assert normal_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (100.0, "100.0"),
        (0.0, "0.0"),
        (0.001, "0.001"),
        (1e-4, "1.0E-4"),
        (1e7, "1.0E7"),
        (12345678.9, "1.23456789E7"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (-2.5e10, "-2.5E10"),
        (5e-324, "4.9E-324"),
        (float("nan"), "NaN"),
        (float("inf"), "Infinity"),
    ],
)
def test_doubles_look_as_on_the_jvm(value: float, text: str) -> None:
    assert double_text(value) == text


def test_a_list_has_each_item_once_but_for_throttled_replicas() -> None:
    assert parse(Key("k", Type.LIST, None, ListOf(("a", "b"))), "b,a,b") == ["b", "a"]
    assert parse(Key("k", Type.LIST, None), "b,a,b") == ["b", "a"]
    assert parse(Key("k", Type.LIST, None, ThrottledReplicas()), "0:1,1:1,0:1") == ["0:1", "1:1", "0:1"]


def test_passwords_are_sensitive() -> None:
    assert Key("k", Type.PASSWORD, None).sensitive
    assert not Key("k", Type.STRING, None).sensitive


def test_counts_by_address() -> None:
    assert counts_by_address(" 127.0.0.1:5, ::1:7,[0::2]:8 ,") == {"127.0.0.1": 5, "::1": 7, "::2": 8}
    assert counts_by_address("") == {}
    for wrong, reason in (("127.0.0.1", "no count"), ("127.0.0.1:x", "no count"), ("localhost:5", "not an IP address")):
        with pytest.raises(InvalidValue, match=reason):
            parse(Key("n", Type.STRING, "", CountsByAddress()), wrong)
