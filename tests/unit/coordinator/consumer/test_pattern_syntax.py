"""Regular expressions as RE2/J reads them: which it refuses, and which texts they match."""

import time
from pathlib import Path

import pytest

from tidelog.coordinator.consumer.pattern_syntax import TEXT_LENGTH_MAX, InvalidPattern, as_re2
from tidelog.coordinator.consumer.patterns import compile_pattern
from tidelog.coordinator.consumer.settings import PATTERN_LENGTH_MAX
from tidelog.wire.errors import ApiError

GOLDEN = Path(__file__).parents[3] / "golden/patterns/re2j-1.8.tsv"
NAMES, *ROWS = GOLDEN.read_text().splitlines()
REFUSED = "no"


def answer(pattern: str) -> str:
    """As the recording has it."""
    try:
        expression = compile_pattern(pattern)
    except ApiError as error:
        if "pattern too large" in error.message:  # of what Unicode's tables make of it: our own limit
            pytest.skip(error.message)
        return REFUSED
    return " ".join(str(i) for i, name in enumerate(NAMES.split("\t")) if expression.fullmatch(name) is not None)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.partition("\t")[0][:60])
def test_an_expression_is_what_it_is_to_kafka(row: str) -> None:
    pattern, _, recorded = row.rpartition("\t")
    assert answer(pattern) == recorded


def test_the_recording_has_both_answers() -> None:
    refused = sum(row.endswith(f"\t{REFUSED}") for row in ROWS)
    assert len(ROWS) > 1200
    assert 300 < refused < len(ROWS) - 300


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("orders-[a-z]+", "orders-[a-z]+"),
        ("(rx-a{0,1000}){0,1000}", "(rx-a*)*"),
        ("(a?){1000}", "(a?)*"),
        ("a{2,300}b{3}?", "a{2,}b{3}?"),
        ("(a{0,30}){34}", "(?:(a{0,30}){0,33}(a{0,30})?)"),
        (r"\Qa.b\E+", r"a\.b+"),
        (r"\é", "é"),
        ("a{01}", "a{01}"),
    ],
)
def test_what_re2_is_given(pattern: str, text: str) -> None:
    assert as_re2(pattern) == text


@pytest.mark.parametrize("pattern", ["(", "a**", "a{2,1}", "a{1001}", "[", "(?=a)", ")", "*", "a{2}{3}"])
def test_what_re2_refuses_is_left_to_it(pattern: str) -> None:
    assert as_re2(pattern) == pattern
    with pytest.raises(ApiError):
        compile_pattern(pattern)


def translated(pattern: str) -> str:
    try:
        return as_re2(pattern)
    except InvalidPattern as error:
        return str(error)


def test_no_expression_of_the_length_that_is_taken_costs_much() -> None:
    units = ["(", "((a?){30}){30}", "a{1000}", "(a|", "[[:word:]", "(?P<n>", "\\Q", "(a{0,30}){34}", "[", "a?", "(?i)"]
    began = time.process_time()
    for unit in units:
        assert len(translated((unit * PATTERN_LENGTH_MAX)[:PATTERN_LENGTH_MAX])) <= TEXT_LENGTH_MAX
    assert "too many" in translated("(" * 10 + "a|b?" + "){0,31}b?" * 10)
    assert time.process_time() - began < 2
