"""The valid names of topics."""

import pytest

from tidelog.metadata.topic_names import flat_name, name_refusal


@pytest.mark.parametrize("name", ["a", "A-b_c.d9", "__consumer_offsets", "x" * 249, "...", "-"])
def test_legal(name: str) -> None:
    assert name_refusal(name) is None


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "é", "a\n", "a\0", "x" * 250, "../etc"])
def test_illegal(name: str) -> None:
    assert name_refusal(name)


@pytest.mark.parametrize(
    ("name", "other", "collides"),
    [
        ("a.b", "a_b", True),
        ("a_b", "a.b", True),
        ("a.b_c", "a_b.c", True),
        ("a.b", "a-b", False),
        ("a.b", "ab", False),
    ],
)
def test_names_that_differ_in_dots_and_underscores_only(name: str, other: str, collides: bool) -> None:
    assert (flat_name(name) == flat_name(other)) is collides
