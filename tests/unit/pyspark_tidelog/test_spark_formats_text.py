"""The formats of texts, as far as they need no Spark."""

import pytest

from pyspark_tidelog.formats.json_format import path_of_field


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("id", "$['id']"),
        ("a.b[0]", "$['a.b[0]']"),
        ("it's", "$.it's"),
        ("really?", "$.really?"),
        ("it's a.b", None),
        ("*", None),
        ("", None),
    ],
)
def test_paths_of_fields(name: str, path: str | None) -> None:
    assert path_of_field(name) == path
