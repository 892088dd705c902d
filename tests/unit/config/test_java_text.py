"""Texts of settings parsed as Java does, compared with Kafka 4.3.1's results for the same texts."""

import re
import time
from pathlib import Path

import pytest

from tidelog.config.java_text import double_text, is_class_name, parse_integer, parse_list, split_at_commas, trim
from tidelog.config.key import TEXT_BYTES_MAX, InvalidValue, Key, Type, normal_text, parse

GOLDEN = Path(__file__).parents[2] / "golden/settings/values-4.3.1.tsv"
ROWS = [tuple(line.split("\t")) for line in GOLDEN.read_text().splitlines()]


def plain(text: str) -> str:
    """Texts are ASCII in the recording, all else is there as \\uXXXX."""
    units = re.sub(r"\\u([0-9a-f]{4})", lambda match: chr(int(match[1], 16)), text)
    return units.encode("utf-16", "surrogatepass").decode("utf-16")


def shown(type_: str, text: str) -> str:
    if type_ == "LIST":  # that no item may be empty, and each is there once, is said by the settings, not by the type
        return "=" + ",".join(parse_list(trim(text)))
    try:
        return f"={normal_text(parse(Key('x', Type[type_], None), text))}"
    except InvalidValue:
        return "no"


@pytest.mark.parametrize(("type_", "text", "recorded"), ROWS, ids=lambda value: value[:40])
def test_texts_are_what_they_are_to_kafka(type_: str, text: str, recorded: str) -> None:
    assert shown(type_, plain(text)) == plain(recorded)


def test_the_recording_has_every_type_and_both_answers() -> None:
    assert {row[0] for row in ROWS} == {"BOOLEAN", "DOUBLE", "INT", "LIST", "LONG", "SHORT", "STRING"}
    assert sum(row[2] == "no" for row in ROWS) > 200
    assert sum(row[2] != "no" for row in ROWS) > 150


def test_names_of_classes() -> None:
    for name in ("java.lang.String", "java.util.Map$Entry", "Unpackaged", "a.b.C_1", "org.example.Äpfel"):
        assert is_class_name(name), name
    for name in ("", "java/lang/String", "java.lang.String[]", "[I", "int", "a..B", ".B", "B.", "1a.B", "a b", "a-b.C"):
        assert not is_class_name(name), name


def test_lists_are_split_as_java_splits_them() -> None:
    assert split_at_commas("a, b,,") == ["a", " b"]
    assert split_at_commas(",a") == ["", "a"]
    assert split_at_commas("") == [""]
    assert split_at_commas(",,") == []


def test_long_texts_are_read_in_no_time() -> None:
    began = time.process_time()
    for text in ("1" * TEXT_BYTES_MAX, "0" * TEXT_BYTES_MAX + "7", " " * TEXT_BYTES_MAX, "٧" * (TEXT_BYTES_MAX // 2)):
        parse_integer(trim(text), 64)
        parse_list(text)
        is_class_name("a." * (TEXT_BYTES_MAX // 2))
        for type_ in (Type.DOUBLE, Type.INT, Type.LIST, Type.CLASS):
            try:
                parse(Key("x", type_, None), text)
            except InvalidValue:
                continue
    assert time.process_time() - began < 1


def test_a_secret_that_is_too_long_is_not_shown() -> None:
    with pytest.raises(InvalidValue) as caught:
        parse(Key("x", Type.PASSWORD, None), "hush" * TEXT_BYTES_MAX)
    assert "hush" not in str(caught.value)
    assert "[hidden]" in str(caught.value)


def test_not_a_number() -> None:
    assert double_text(float("nan")) == "NaN"
