"""A query that continues with an older copy of its checkpoint, and writes to a topic. A broker runs in this process."""

import uuid
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

pytest.importorskip("pyspark", reason="needs tidelog[spark]")

from exactly_once_harness.query import Query
from pyspark_tidelog.errors import WriteError
from tidelog.pipelines import topic
from tidelog.pipelines.dead_letters import DeadLetters
from tidelog.pipelines.declarations import PipelineError
from tidelog.pipelines.topics import OpenedTopic, check_newest
from tidelog.testing import Broker

ROWS = [["a", "b"], ["c"]]


@pytest.fixture
def query(tidelog_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Query:
    """A query that has written the micro-batches 0 to 2."""
    written = Query(tidelog_broker.bootstrap, f"q{uuid.uuid4().hex[:8]}", monkeypatch)
    for number in range(3):
        written.write(number, ROWS)
    return written


def test_a_stream_is_refused_and_a_batch_write_may_repeat_its_numbers(query: Query) -> None:
    results = query.run_tasks(1, [["new"]])
    with pytest.raises(WriteError, match=r"its 1 rows may not be in the topic: batch 2 .* Restore the newest state of"):
        query.commit(1, results, is_streaming=True)
    query.commit(2, query.run_tasks(2, ROWS), is_streaming=True)
    query.commit(1, results)
    assert query.committed() == sorted("abc" * 3)


def test_a_pipeline_is_refused(query: Query) -> None:
    for number in (2, 3):
        check_newest(query.bootstrap, "topic t", query.name, number)
    context: Any = SimpleNamespace(bootstrap=query.bootstrap, query=query.name, pipeline="p")
    message = rf"contains micro-batch 2 of query {query.name}, but .* continues with micro-batch 1, .* replay NAME"
    rows: Any = SimpleNamespace(columns=["value"])
    with pytest.raises(PipelineError, match=rf"^pipeline p: topic {query.topic}: the target {message}"):
        OpenedTopic(topic(query.topic), context).write(rows, 1)


def test_dead_letters_are_refused(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the sink stores no numbers, as http(), only the topic of the dead letters shows that the checkpoint is old."""
    letters = Query(query.bootstrap, f"{query.name}.dead-letters.sales", monkeypatch)
    letters.write(7, ROWS)
    monkeypatch.setattr("tidelog.pipelines.dead_letters.last_planned_batch", lambda _: -1)
    context: Any = SimpleNamespace(bootstrap=query.bootstrap, pipeline="p")
    source: Any = MagicMock()
    written = DeadLetters("dead", context, query.name, cast(Any, None), {"sales": source}, tuple, dict)
    monkeypatch.setattr("tidelog.pipelines.dead_letters.dead_letter_columns", MagicMock())
    monkeypatch.setattr("pyspark.sql.functions.lit", MagicMock())
    monkeypatch.setattr("pyspark.sql.functions.count", MagicMock())
    monkeypatch.setattr("pyspark.sql.Observation", MagicMock())
    with pytest.raises(PipelineError, match=r"dead letters of source sales in topic dead: the target contains micro-b"):
        written._write_range("sales", source, {}, 6)
