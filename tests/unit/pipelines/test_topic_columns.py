"""Which columns and options of a topic go where. The columns themselves are made by Spark."""

from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from tidelog.pipelines import json, topic
from tidelog.pipelines.declarations import SourceContext


@pytest.mark.parametrize(
    ("name", "key", "separate", "value"),
    [
        ("t", None, ["headers"], ["other", "topic"]),
        ("t", "other", ["headers"], ["key", "topic"]),
        ("t", ["other", "topic"], ["headers"], ["key"]),
        ("t", "key", ["headers"], ["other", "topic"]),
        (None, "other", ["headers", "topic"], ["key"]),
    ],
)
def test_no_column_is_left_out(name: str | None, key: Any, separate: list[str], value: list[str]) -> None:
    sink = topic(name, value=json(), key=key)
    assert sink.columns_apart_from_key(["key", "other", "headers", "topic"]) == (separate, value)


def test_a_range_is_read_with_the_declared_options_in_any_case() -> None:
    declared = {"failondataloss": False, "KAFKA.fetch.max.bytes": 7, "maxOffsetsPerTrigger": 9}
    spark = SimpleNamespace(read=MagicMock())
    context = SourceContext(cast(Any, spark), "a:1", "sales", is_streaming=False)
    topic("t", options=declared).read_range(context, {"t": {"0": (1, 5)}})
    given = spark.read.format.return_value.options.call_args.kwargs
    assert given["failondataloss"] == "false"
    assert given["KAFKA.fetch.max.bytes"] == "7"
    assert "maxOffsetsPerTrigger" not in given
