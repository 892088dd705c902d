"""The value language of conversation files."""

import pytest

from .values import BadText, BuilderCall, Name, Text, evaluate, parse_fields, parse_value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("null", None),
        ("true", True),
        ("-17", -17),
        ("0x1f", 31),
        ("word-1.x", Text("word-1.x")),
        ('"a ${b}\\n"', Text("a ${b}\n")),
        ("$name", Name("name")),
        ("[1, [], {a=2}]", [1, [], {"a": 2}]),
        ('{"retention.ms"=5}', {"retention.ms": 5}),
        ("batch(1, codec=gzip)", BuilderCall("batch", (1,), {"codec": Text("gzip")})),
    ],
)
def test_parses(text: str, value: object) -> None:
    assert parse_value(text) == value


@pytest.mark.parametrize("text", ["", "[1", "{a}", "1 2", "a=1", "batch(", "[1 2]", '"open', "{a=1, a=2}", "@"])
def test_refuses(text: str) -> None:
    with pytest.raises(BadText):
        parse_value(text)


def test_fields_keep_their_order_and_are_given_once() -> None:
    assert list(parse_fields("b=1 a=[2] c=$x")) == ["b", "a", "c"]
    with pytest.raises(BadText, match="twice"):
        parse_fields("a=1 a=2")


def test_evaluates_variables_texts_and_builders() -> None:
    expression = parse_value('{id=$id, name="${run}-t", size=double($n, by=3)}')
    builders = {"double": lambda number, by: number * by}
    value = evaluate(expression, {"id": "x", "run": "r", "n": 4}, builders)
    assert value == {"id": "x", "name": "r-t", "size": 12}


def test_names_what_there_is_not() -> None:
    with pytest.raises(BadText, match="no variable"):
        evaluate(Name("gone"), {}, {})
    with pytest.raises(BadText, match="no builder"):
        evaluate(BuilderCall("gone", (), {}), {}, {})
