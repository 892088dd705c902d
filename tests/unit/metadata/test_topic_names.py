"""Names that a topic may have."""

import pytest

from tidelog.metadata.topic_names import colliding, name_refusal


@pytest.mark.parametrize("name", ["a", "A-b_c.d9", "__consumer_offsets", "x" * 249, "...", "-"])
def test_legal(name: str) -> None:
    assert name_refusal(name) is None


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "é", "a\n", "a\0", "x" * 250, "../etc"])
def test_illegal(name: str) -> None:
    assert name_refusal(name)


@pytest.mark.parametrize(
    ("name", "names", "other"),
    [
        ("a.b", ["x", "a_b"], "a_b"),
        ("a_b", ["a.b"], "a.b"),
        ("a.b_c", ["a_b.c"], "a_b.c"),
        ("a.b", ["a-b", "ab"], None),
        ("ab", ["a.b"], None),
    ],
)
def test_names_that_differ_in_dots_and_underscores_only(name: str, names: list[str], other: str | None) -> None:
    assert colliding(name, names) == other
